#include "trireme/train/agreement.h"

#include <algorithm>
#include <exception>

#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {
namespace {

constexpr int64_t kCodes = 256;  // exit codes fit below this

}  // namespace

void Agreement::all_or_none(const std::string& what, const std::function<void()>& work) {
  std::exception_ptr own;
  int64_t code = 0;
  try {
    work();
  } catch (const CommError&) {
    throw;  // the others cannot be reached
  } catch (const Error& error) {
    own = std::current_exception();
    code = error.exit_code();
  } catch (const std::exception& error) {
    const auto memory = as_out_of_memory(error);
    own = memory ? std::make_exception_ptr(ConfigError(cat(what, ": ", memory->what())))
                 : std::make_exception_ptr(InternalError(cat(what, ": ", error.what())));
    code = memory ? memory->exit_code() : InternalError("").exit_code();
  }
  const int64_t worst = largest(own ? (group_.rank() + 1) * kCodes + code : 0);
  if (own) std::rethrow_exception(own);
  if (worst == 0) return;
  const std::string message = cat("rank ", worst / kCodes - 1, " failed while ", what, "; ", kAnotherSaysWhy);
  const int64_t kind = worst % kCodes;
  if (kind == ConfigError("").exit_code()) throw ConfigError(message);
  if (kind == DataError("").exit_code()) throw DataError(message);
  throw InternalError(message);
}

int64_t Agreement::largest(int64_t mine) {
  at::Tensor value = at::full({1}, mine, at::TensorOptions(at::kLong)).to(device_);
  all_reduce_max(group_, value);
  return value.item<int64_t>();
}

int64_t Agreement::of_rank_0(int64_t mine) {
  at::Tensor value = at::full({1}, mine, at::TensorOptions(at::kLong)).to(device_);
  broadcast(group_, value, 0);
  return value.item<int64_t>();
}

double Agreement::sum(double mine) {
  at::Tensor value = at::full({1}, mine, at::TensorOptions(at::kDouble)).to(device_);
  all_reduce_sum(group_, value);
  return value.item<double>();
}

std::string Agreement::first_text(const std::string& mine) {
  const std::vector<std::vector<int64_t>> bytes = gather({static_cast<int64_t>(mine.size())});
  const auto has = std::find_if(bytes.begin(), bytes.end(), [](const auto& of) { return of[0] > 0; });
  if (has == bytes.end()) return "";
  const auto rank = static_cast<int>(has - bytes.begin());
  at::Tensor text = at::empty({(*has)[0]}, at::kByte);
  if (rank == group_.rank()) std::copy(mine.begin(), mine.end(), text.mutable_data_ptr<uint8_t>());
  text = text.to(device_);
  broadcast(group_, text, rank);
  text = text.to(at::kCPU);
  const auto* begin = text.const_data_ptr<uint8_t>();
  return {begin, begin + text.size(0)};
}

std::vector<std::vector<int64_t>> Agreement::gather(const std::vector<int64_t>& mine) {
  const auto width = static_cast<int64_t>(mine.size());
  const at::Tensor row = at::tensor(mine, at::kLong).reshape({1, width}).to(device_);
  const std::vector<int64_t> rows(static_cast<size_t>(group_.size()), 1);
  const at::Tensor all = all_gather(group_, row, rows).to(at::kCPU);
  std::vector<std::vector<int64_t>> out;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto* values = all.const_data_ptr<int64_t>() + rank * width;
    out.emplace_back(values, values + width);
  }
  return out;
}

}  // namespace trireme
