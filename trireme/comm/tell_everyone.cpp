#include "trireme/comm/tell_everyone.h"

#include "trireme/base/error.h"

namespace trireme {

// Rank 0 reads all messages and writes them as one list, so the store answers few requests per rank.
std::vector<Json> tell_everyone(c10d::Store& store, const RankIdentity& identity, const std::string& key,
                                const Json& of_rank) {
  const auto take = [&](const std::string& from) {
    return parse_json(store.get_to_str(from), cat("the store's ", from));
  };
  const std::string all = key + "/all";
  if (identity.rank != 0) {
    store.set(cat(key, "/", identity.rank), of_rank.dump());
    return take(all).get<std::vector<Json>>();
  }
  std::vector<Json> of_ranks{of_rank};
  for (int peer = 1; peer < identity.size; ++peer) of_ranks.push_back(take(cat(key, "/", peer)));
  store.set(all, Json(of_ranks).dump());
  return of_ranks;
}

}  // namespace trireme
