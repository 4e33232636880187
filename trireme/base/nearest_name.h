// The name that a mistyped word was probably meant to be, for "did you mean" in errors.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme {

// The candidate with the smallest edit distance (insertions, deletions, substitutions, swaps of neighbours);
// nullopt if even that one differs in more than a third of its letters.
std::optional<std::string> nearest_name(const std::string& word, const std::vector<std::string>& candidates);

// "; did you mean 'beta_fast'?", for the end of an error; empty where no candidate is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace trireme
