#include "trireme/comm/store_exchange.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

void put(c10d::Store& store, const std::string& key, const Json& value) {
  const std::string text = value.dump();
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

Json take(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> text = store.get(key);
  return parse_json({text.begin(), text.end()}, cat("the store's ", key));
}

}  // namespace

std::vector<Json> tell_everyone(c10d::Store& store, int rank, int size, const std::string& key,
                                const Json& of_rank) {
  const std::string all = key + "/all";
  if (rank != 0) {
    put(store, cat(key, "/", rank), of_rank);
    return take(store, all).get<std::vector<Json>>();
  }
  std::vector<Json> of_ranks{of_rank};
  of_ranks.reserve(static_cast<size_t>(size));
  for (int peer = 1; peer < size; ++peer) of_ranks.push_back(take(store, cat(key, "/", peer)));
  put(store, all, of_ranks);
  return of_ranks;
}

}  // namespace trireme
