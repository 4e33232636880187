// Several tokenized sets -> one, in which each has a given share of the tokens:
//
//   long books   a a a a a a a a   b b b b b        share 0.6
//   short texts  c c   d   e e e   f f   g          share 0.4
//   mixed        a a a a a a a a  c c  e e e  d  b b b b b  f f  g ...
//
// The next document is of the set that is furthest behind its share. A set's documents come in an order drawn by
// the seed, each once before any comes again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct SourceOfMix {
  std::filesystem::path prefix;
  double weight = 1;  // above 0; its share is its part of all weights
};

struct MixOptions {
  int64_t tokens = 0;  // that the mix has at least; 0: as many as no document has to come twice for
  uint64_t seed = 42;
};

struct MixReport {
  struct OfSource {
    std::filesystem::path prefix;
    int64_t documents = 0, tokens = 0;
    double times_read = 0;  // its tokens in the mix over its own
  };
  std::vector<OfSource> sources;
  int64_t documents = 0, tokens = 0, prompt_tokens = 0, longest_document_tokens = 0;
  bool fingerprint = false;        // every source tells its tokenizer, so the mix does too
  std::vector<std::string> notes;  // for people
};

// Writes PREFIX.bin and PREFIX.idx, and PREFIX.set.json (set_fingerprint.h) where every source has one, or one
// says how its chats are written. Throws ConfigError for sets whose ids are of different tokenizers, or `prefix`
// among the sources; DataError for a set that cannot be read or has no token, and a disk that fails. Nothing is
// left behind then.
MixReport mix_sets(const std::vector<SourceOfMix>& sources, const std::filesystem::path& prefix,
                   const MixOptions& options);

}  // namespace trireme
