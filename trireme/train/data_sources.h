// What the tokens of a run are made of, told by content: a checkpoint remembers it, and a resumed run is compared with it.
//
//   tokenized set   .idx whole, the size of .bin, and 256 blocks of 64 KiB spread over .bin: 16 MiB are read of a set of any
//                   size. A change of the token counts is always seen; one that leaves every document's length as it was and
//                   touches no block is not.
//   text            every file's name below the input and its bytes (remembered_checksums.h says what is not read again), the
//                   field of .jsonl, --no_append_eos, tokenizer.json
//
// Tokens of text lie in the run's folder under a name made of that digest, so that tokens of another text are never
// taken for these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

class RememberedChecksums;
struct TextToTokenize;

// {"path", "kind", ..., "digest"}. Throws ConfigError when nothing is there, DataError when it cannot be read.
Json describe_source(const TextToTokenize& text, RememberedChecksums& remembered);
// The same of a text that is gone, whose content `before` describes; null where that is of another path, or no text.
Json describe_gone_text(const TextToTokenize& text, const Json& before);
// What differs between two descriptions but the path, such as "text_field \"text\" -> \"body\""; empty: the same tokens.
std::vector<std::string> source_changes(const Json& before, const Json& now);

}  // namespace trireme
