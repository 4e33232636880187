// Every second mutation of a JSON input keeps it JSON: one value is replaced, removed, repeated or swapped
// with another. The other half is libFuzzer's, byte by byte. A safetensors file's header is mutated so, with
// its length kept true.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);

namespace {

using Json = nlohmann::json;

void collect(Json& json, std::vector<Json*>& all, int depth = 0) {
  all.push_back(&json);
  if (depth < 200 && json.is_structured())
    for (Json& inside : json) collect(inside, all, depth + 1);
}

Json odd_value(std::mt19937& random) {
  static const Json kValues = Json::parse(R"([
    null, true, false, 0, 1, -1, 2, 7, 64, 255, 65535, 65536, 2147483647, 2147483648, -2147483649,
    9007199254740993, 9223372036854775807, 18446744073709551615, 0.5, -0.5, 1e30, 1e-300, 1.7e308,
    "", "a", "..", "/etc/passwd", "rank-00001.safetensors", "\u00e9", "F32", "BF16", "ByteLevel", "Sequence", "Split",
    [], {}, [0, 1], {"type": "ByteLevel"}, {"Regex": "(a*)*b"}])");
  const size_t chosen = random() % (kValues.size() + 1);
  return chosen < kValues.size() ? kValues[chosen] : Json(std::string(300, 'x'));
}

void mutate(Json& json, std::mt19937& random) {
  std::vector<Json*> all;
  collect(json, all);
  Json& chosen = *all[random() % all.size()];
  switch (random() % 6) {
    case 0:
      chosen = odd_value(random);
      break;
    case 1:
      chosen = Json(*all[random() % all.size()]);
      break;
    case 2:
      if (chosen.is_structured() && !chosen.empty())
        chosen.erase(std::next(chosen.begin(), static_cast<int64_t>(random() % chosen.size())));
      break;
    case 3:
      if (chosen.is_array()) chosen.push_back(odd_value(random));
      if (chosen.is_object()) chosen["key" + std::to_string(random() % 4)] = odd_value(random);
      break;
    case 4:
      if (chosen.is_number_integer())
        chosen = static_cast<int64_t>(chosen.get<uint64_t>() + random() % 3 - 1);
      if (chosen.is_array() && !chosen.empty()) chosen.push_back(Json(chosen[random() % chosen.size()]));
      break;
    default:
      for (unsigned depth = random() % 120; depth > 0; --depth)
        chosen = random() % 2 == 0 ? Json{{"a", chosen}} : Json::array({chosen});
  }
}

}  // namespace

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::mt19937 random(seed);
  uint64_t header = 0;
  if (size > 10 && data[8] == '{') std::memcpy(&header, data, 8);
  const bool framed = header > 1 && header <= size - 8;
  const size_t begin = framed ? 8 : 0, length = framed ? header : size;
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  Json json = Json::parse(data + begin, data + begin + length, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return LLVMFuzzerMutate(data, size, max_size);
  for (unsigned times = 1 + random() % 3; times > 0; --times) mutate(json, random);
  const std::string rest(data + begin + length, data + size);
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (begin + text.size() + rest.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  if (framed) {
    const uint64_t new_length = text.size();
    std::memcpy(data, &new_length, 8);
  }
  std::memcpy(data + begin, text.data(), text.size());
  std::memcpy(data + begin + text.size(), rest.data(), rest.size());
  return begin + text.size() + rest.size();
}
