// Text to a tokenized set, for runs that start from text.
#pragma once

#include "trireme/train/training_data.h"

namespace trireme {

// Writes text.prefix.{bin,idx}. Not collective. Throws DataError: no documents, not readable, full disk.
void tokenize_text(const TextToTokenize& text);

}  // namespace trireme
