// Describes by content what a run's tokens are made of. A checkpoint stores the descriptions of its stage's
// data and, where stages have files of their own, of all these: {"train": {}, "eval": {}, "stages": [{}, ...]}.
// A resumed run is compared with its stage's.
//
//   tokenized set   the whole .idx, the size of .bin, and 256 blocks of 64 KiB spread over .bin: 16 MiB are
//                   read of a set of any size. Every change of the token counts is seen. A change that keeps
//                   every document's length and touches no block is not.
//   text            every file's name below the input and its bytes (remembered_checksums.h: which files are
//                   not read again), the field of .jsonl, --on_bad_record,
//                   --no_append_eos, tokenizer.json, the end-of-text token
//
// The tokens of text lie in the run's folder under a name made of that digest, so that tokens of another text
// are never taken for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

class RememberedChecksums;
class TextSource;
struct TextToTokenize;

inline constexpr const char* kSavedStages = "stages";  // of a checkpoint's "data"

// Throws ConfigError where there is no text. Asked where the input is no tokenized set.
void refuse_missing(const std::filesystem::path& input);
// Tells `note` which files of a text's input are not in it.
void tell_left_out(const TextSource& source, const TextToTokenize& text,
                   const std::function<void(const std::string&)>& note);
// {"path", "kind", ..., "digest"}. Tells `note` which files of a text are left out. ConfigError without an
// input, DataError when it cannot be read.
Json describe_source(const TextToTokenize& text, RememberedChecksums& remembered,
                     const std::function<void(const std::string&)>& note);
// The same for a text that is gone, whose content `before` describes; null if `before` is of another path or
// of no text.
Json describe_gone_text(const TextToTokenize& text, const Json& before);
// Of a tokenized set: the sizes of both files, and at most 16 MiB of each, so that every rank can look.
uint64_t digest_of_set(const std::filesystem::path& prefix);
// What differs between two descriptions except the path, such as "text_field \"text\" -> \"body\""; empty:
// the same tokens.
std::vector<std::string> source_changes(const Json& before, const Json& now);

}  // namespace trireme
