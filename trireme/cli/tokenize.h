// trireme tokenize: text files to a tokenized set, Megatron-LM's PREFIX.bin and PREFIX.idx.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_tokenize(const std::vector<std::string>& arguments);

}  // namespace trireme
