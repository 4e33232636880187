#include "trireme/comm/store_messages.h"

#include <cstring>
#include <stdexcept>

#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"

namespace trireme {
namespace {

constexpr std::string_view kProtocol = "TRIREME1";
constexpr size_t kCount_bytes = sizeof(uint32_t);

std::string count_bytes(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

uint32_t count_at(std::string_view bytes, size_t begin) {
  uint32_t value = 0;
  for (size_t i = 0; i < kCount_bytes; ++i)
    value |= uint32_t{static_cast<uint8_t>(bytes[begin + i])} << (8 * i);
  return value;
}

template <typename Number>
Number number_of(const std::string& text) {
  if (const auto value = parse_whole<Number>(text)) return *value;
  throw std::runtime_error("a message with a wrong number");
}

Sha256Digest proof_of(const Texts& texts, std::string_view secret, std::string_view role,
                      const Nonces& nonces) {
  return hmac_sha256(secret,
                     cat(role, '\0', bytes_of(nonces.of_rank), bytes_of(nonces.of_store), frame_of(texts)));
}

}  // namespace

std::string greeting(const Sha256Digest& nonce) {
  return cat(kProtocol, bytes_of(nonce));
}

bool begins_greeting(std::string_view bytes) {
  return bytes.substr(0, kProtocol.size()) == kProtocol.substr(0, bytes.size());
}

std::optional<Sha256Digest> nonce_of(std::string_view greeting) {
  if (greeting.size() != kGreeting_bytes || !begins_greeting(greeting)) return std::nullopt;
  Sha256Digest nonce{};
  std::memcpy(nonce.data(), greeting.data() + kProtocol.size(), nonce.size());
  return nonce;
}

std::string frame_of(const Texts& texts) {
  std::string body = count_bytes(static_cast<uint32_t>(texts.size()));
  for (const std::string& text : texts)
    body.append(count_bytes(static_cast<uint32_t>(text.size()))).append(text);
  return count_bytes(static_cast<uint32_t>(body.size())) + body;
}

std::optional<std::string> take_frame(std::string& received, size_t largest_bytes) {
  if (received.size() < kCount_bytes) return std::nullopt;
  const size_t size = count_at(received, 0);
  if (size > largest_bytes) throw std::runtime_error(cat("a message of ", size, " bytes"));
  if (received.size() < kCount_bytes + size) return std::nullopt;
  std::string frame = received.substr(kCount_bytes, size);
  received.erase(0, kCount_bytes + size);
  return frame;
}

Texts texts_of(std::string_view frame) {
  const auto need = [&](size_t bytes) {
    if (frame.size() < bytes) throw std::runtime_error("a message that is cut short");
  };
  need(kCount_bytes);
  const size_t count = count_at(frame, 0);
  frame.remove_prefix(kCount_bytes);
  Texts texts;
  for (size_t i = 0; i < count; ++i) {
    need(kCount_bytes);
    const size_t size = count_at(frame, 0);
    frame.remove_prefix(kCount_bytes);
    need(size);
    texts.emplace_back(frame.substr(0, size));
    frame.remove_prefix(size);
  }
  if (!frame.empty()) throw std::runtime_error("a message with more bytes than it tells");
  return texts;
}

Texts Hello::texts() const {
  return {std::to_string(rank),    std::to_string(size), first ? "1" : "0", attempt, version, host,
          std::to_string(process), secret_origin};
}

Hello Hello::from(const Texts& texts) {
  constexpr size_t kFields = 8;
  if (texts.size() != kFields) throw std::runtime_error("a message with other fields");
  return {.rank = number_of<int>(texts[0]),
          .size = number_of<int>(texts[1]),
          .first = texts[2] == "1",
          .attempt = printable(texts[3]),
          .version = printable(texts[4]),
          .host = printable(texts[5]),
          .process = number_of<int64_t>(texts[6]),
          .secret_origin = printable(texts[7])};
}

std::string Hello::name() const {
  return cat("rank ", rank, " (host ", host, ", process ", process, ")");
}

Verdict Verdict::from(const Texts& texts) {
  if (texts.size() != 2) throw std::runtime_error("a message with other fields");
  const int kind = number_of<int>(texts[0]);
  if (kind < 0 || kind > static_cast<int>(Kind::missing)) throw std::runtime_error("an unknown verdict");
  return {static_cast<Kind>(kind), texts[1]};
}

std::string proven_frame(Texts texts, std::string_view secret, std::string_view role, const Nonces& nonces) {
  texts.emplace_back(bytes_of(proof_of(texts, secret, role, nonces)));
  return frame_of(texts);
}

bool take_proof(Texts& texts, std::string_view secret, std::string_view role, const Nonces& nonces) {
  if (texts.empty()) return false;
  const std::string proof = std::move(texts.back());
  texts.pop_back();
  return equal_in_constant_time(proof, bytes_of(proof_of(texts, secret, role, nonces)));
}

std::string printable(std::string_view text) {
  constexpr size_t kMost = 100;
  std::string kept(text.substr(0, kMost));
  for (char& letter : kept)
    if (letter < ' ' || letter > '~') letter = '?';
  return kept;
}

std::string program_version() {
  return TRIREME_VERSION;
}

}  // namespace trireme
