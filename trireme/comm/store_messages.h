// The messages between a rank and the store of the run, which rank 0 holds:
//
//   rank -> store   greeting: the protocol's name and a nonce
//   store -> rank   the same, with the store's nonce
//   rank -> store   Hello, with the proof that the rank knows the run's secret
//   store -> rank   Verdict, with the store's proof, when every rank has come or the run is refused
//   rank -> store   requests;  store -> rank   their answers
//
// Each message after the greetings is a frame: its size, then a list of texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/sha256.h"

namespace trireme {

using Texts = std::vector<std::string>;

// The protocol's name and a nonce.
constexpr size_t kGreeting_bytes = 40;
// Larger frames are refused: of peers that have not proved the secret yet, and of ranks.
constexpr size_t kLargestHello_bytes = 4096;
constexpr size_t kLargestFrame_bytes = size_t{256} << 20;

struct Nonces {
  Sha256Digest of_rank{}, of_store{};
};

std::string greeting(const Sha256Digest& nonce);
// Whether `bytes` may be a greeting or the beginning of one.
bool begins_greeting(std::string_view bytes);
// nullopt if this is no greeting.
std::optional<Sha256Digest> nonce_of(std::string_view greeting);

std::string frame_of(const Texts& texts);
// Removes the first frame from `received` and returns it; nullopt if it is incomplete. Throws
// std::runtime_error for a size beyond `largest_bytes`.
std::optional<std::string> take_frame(std::string& received, size_t largest_bytes);
// Throws std::runtime_error for bytes that are no list of texts.
Texts texts_of(std::string_view frame);

// The first message of a rank after its greeting.
struct Hello {
  int rank = 0;
  int size = 1;
  bool first = true;  // connection of this rank; else another one
  std::string attempt;
  std::string version;        // of the program
  std::string host;           // only to be told
  int64_t process = 0;        // only to be told
  std::string secret_origin;  // only to be told
  Texts texts() const;
  // Throws std::runtime_error.
  static Hello from(const Texts& texts);
  // "rank 1 (host gpu07, process 1234)"
  std::string name() const;
};

struct Verdict {
  enum class Kind : uint8_t {
    go,            // every rank has come
    come_later,    // rank 0 of another attempt will answer at this address
    wrong_secret,  // the proof does not hold
    differing,     // the ranks cannot be one run: ConfigError on all
    missing,       // ranks have not come in time: CommError on all
  };
  Kind kind = Kind::go;
  std::string reason;
  // Throws std::runtime_error.
  static Verdict from(const Texts& texts);
};

// The last text of the message is the proof: an HMAC over role, nonces and the texts before it.
std::string proven_frame(Texts texts, std::string_view secret, std::string_view role, const Nonces& nonces);
// Removes the proof from `texts`. Returns whether it holds.
bool take_proof(Texts& texts, std::string_view secret, std::string_view role, const Nonces& nonces);
inline constexpr std::string_view kRoleOfRank = "rank", kRoleOfStore = "store";

enum class StoreRequest : uint8_t {
  set,          // key, value
  get,          // key: its value, when it is there
  wait,         // key, ...: when all are there
  check,        // key, ...: "1" when all are there, else "0"
  add,          // key, number: the sum
  compare_set,  // key, expected, desired: the value afterwards
  remove,       // key: "1" when it was there
  count,        // how many keys there are
  goodbye,      // the rank has done its work: its end is no loss
};
enum class StoreStatus : uint8_t { done, lost };

// Text from outside for messages: without control characters, and short.
std::string printable(std::string_view text);

std::string program_version();

}  // namespace trireme
