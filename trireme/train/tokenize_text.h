// Turns text into a tokenized set, for runs that start from text.
#pragma once

#include "trireme/train/training_data.h"

namespace trireme {

// Writes text.prefix.{bin,idx}. Not collective. DataError for no documents, unreadable text or a full disk.
void tokenize_text(const TextToTokenize& text);

}  // namespace trireme
