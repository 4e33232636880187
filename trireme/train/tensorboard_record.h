// The bytes of TensorBoard's event files, without a protobuf library: there are few fields.
//
//   file     records, one after another
//   record   TFRecord: event's length (uint64) | its masked CRC (uint32) | event | its masked CRC (uint32)
//   event    protobuf tensorboard.Event: wall_time = 1 (double), step = 2 (int64), and one of
//              file_version = 3 (string)                                        first of every file
//              summary = 5 { value = 1 { tag = 1 (string), simple_value = 2 (float) }, ... }
//              session_log = 7 { status = 1: START = 1 }                         a process began or went on
//
// Numbers are little-endian. At a START, readers drop the points that they have of its step and later steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct EventScalar {
  std::string tag;
  double value = 0;  // written as a float, as TensorBoard's own scalars are
};

// Each returns an encoded Event; times are Unix seconds.
std::string file_version_event(double wall_time_seconds);
std::string session_start_event(double wall_time_seconds, int64_t step);
std::string scalars_event(double wall_time_seconds, int64_t step, const std::vector<EventScalar>& scalars);

// The event as a record of a file.
std::string event_record(std::string_view event);

// CRC-32C (Castagnoli; RFC 3720, section B.4), not masked.
uint32_t crc32c(std::string_view bytes);

}  // namespace trireme
