// Every key of a DeepSpeed configuration (deepspeed/runtime/config.py and what it reads, 0.19), and what it
// is for Trireme: an option, one of several values that become options together, nothing (with the reason),
// or refused (with what to give instead). One table reads ds_config files (deepspeed_config.h) and makes
// docs/deepspeed-config.md.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"

namespace trireme {

enum class DeepSpeedType { boolean, whole, number, text, two_numbers, anything };
constexpr auto enum_names(DeepSpeedType) {
  using enum DeepSpeedType;
  return std::to_array<EnumName<DeepSpeedType>>({{boolean, "true or false"},
                                                 {whole, "a whole number"},
                                                 {number, "a number"},
                                                 {text, "text"},
                                                 {two_numbers, "a list of two numbers"},
                                                 {anything, "anything"}});
}
enum class DeepSpeedUse { option, together, nothing, refused };

struct DeepSpeedKey {
  struct Named {
    Json deepspeed, ours;
  };

  std::string section = {};  // a heading of the page
  std::string path = {};     // "zero_optimization.stage"; "aio.*" is all below
  DeepSpeedType type = DeepSpeedType::anything;
  DeepSpeedUse use = DeepSpeedUse::nothing;
  std::string option = {};         // of DeepSpeedUse::option
  std::vector<Named> values = {};  // of an option that calls its values otherwise
  Json harmless = {};              // the value that asks for nothing
  std::string answer = {};         // one line, without a full stop
};

const std::vector<DeepSpeedKey>& deepspeed_keys();
// The row of a path; nullptr where DeepSpeed has none.
const DeepSpeedKey* find_deepspeed_key(const std::string& path);
// Whether keys lie below a path.
bool is_deepspeed_block(const std::string& path);
// The known key that a path was probably meant to be; empty: none.
std::string nearest_deepspeed_key(const std::string& path);

}  // namespace trireme
