// A fuzz target: what Trireme does with one kind of file (or line) from outside. Each may do two things with
// any bytes: take them, or refuse them with a DataError or ConfigError that names the file and stays short.
// Whatever else happens is a crash: another exception, a signal, a sanitizer's report.
//
//   ./dev fuzz NAME           libFuzzer calls it with mutated bytes
//   fuzz_replay_test          calls it with the seeds of corpus/NAME and with every crash found, kept in
//                             regressions/NAME
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace trireme::fuzz {

using Bytes = std::span<const uint8_t>;

// Each in its own target_NAME.cpp.
void safetensors(Bytes input);   // a file: header, offsets, values
void index(Bytes input);         // model.safetensors.index.json beside two shards
void config(Bytes input);        // config.json of a model
void tokenizer(Bytes input);     // tokenizer.json, which then encodes
void dataset(Bytes input);       // two bytes: the length of .bin; the rest is .idx
void manifest(Bytes input);      // manifest.json of a checkpoint
void state(Bytes input);         // trainer_state.json
void jsonl(Bytes input);         // lines of documents
void reference(Bytes input);     // verify's file
void command_line(Bytes input);  // a command and its arguments, a line each
void memory_error(Bytes input);  // a pasted log with an out-of-memory message

// A folder of this process, in memory where the machine has it; removed when the process ends in order.
const std::filesystem::path& scratch_folder();
// Writes it there under `name`, replacing an earlier one.
std::filesystem::path write_input(const std::string& name, Bytes bytes);
inline std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Runs `body`; aborts with the message where it is refused otherwise than above. `name` is what a message
// must have.
void taken_or_refused(std::string_view name, const std::function<void()>& body);

}  // namespace trireme::fuzz
