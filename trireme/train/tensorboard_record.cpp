#include "trireme/train/tensorboard_record.h"

#include <array>
#include <bit>

namespace trireme {
namespace {

enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, (field << 3) | static_cast<unsigned>(wire));
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// `what` is the field of Event that tells what happened, and holds `payload`.
std::string encode_event(double wall_time_seconds, int64_t step, unsigned what, std::string_view payload) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(wall_time_seconds), 8);
  if (step != 0) {  // a missing step means 0
    put_key(event, 2, Wire::varint);
    put_varint(event, static_cast<uint64_t>(step));
  }
  put_bytes(event, what, payload);
  return event;
}

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kCastagnoliReflected = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoliReflected : 0);
    table[byte] = crc;
  }
  return table;
}

// TFRecord's, so that a CRC over bytes that hold a CRC is no special case.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

std::string file_version_event(double wall_time_seconds) {
  return encode_event(wall_time_seconds, 0, 3, "brain.Event:2");
}

std::string session_start_event(double wall_time_seconds, int64_t step) {
  std::string session_log;
  put_key(session_log, 1, Wire::varint);
  put_varint(session_log, 1);
  return encode_event(wall_time_seconds, step, 7, session_log);
}

std::string scalars_event(double wall_time_seconds, int64_t step, const std::vector<EventScalar>& scalars) {
  std::string summary;
  for (const EventScalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, Wire::fixed32);
    put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)), 4);
    put_bytes(summary, 1, value);
  }
  return encode_event(wall_time_seconds, step, 5, summary);
}

std::string event_record(std::string_view event) {
  std::string record;
  put_little_endian(record, event.size(), 8);
  put_little_endian(record, masked_crc(record), 4);
  record += event;
  put_little_endian(record, masked_crc(event), 4);
  return record;
}

}  // namespace trireme
