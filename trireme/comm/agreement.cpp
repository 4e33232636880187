#include "trireme/comm/agreement.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/machine_error.h"

namespace trireme {
namespace {

constexpr int64_t kCodes = 256;  // exit codes fit below this

// The copy to a device waits for what that has yet to finish: also for exchanges, and so for other ranks.
at::Tensor to_device(const at::Tensor& values, at::Device device, Group& group) {
  const ActivityWait wait(group.activity());
  return values.to(device);
}

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values, at::Device device, Group& group) {
  return to_device(at::tensor(values, at::CppTypeToScalarType<T>::value), device, group);
}

// What the ranks exchanged, on the host, which waits for them here where they exchange on devices.
template <typename T>
std::vector<T> values_of(const at::Tensor& on_device, Group& group) {
  const ActivityWait wait(group.activity());
  const at::Tensor values = on_device.to(at::kCPU);
  return {values.const_data_ptr<T>(), values.const_data_ptr<T>() + values.numel()};
}

}  // namespace

void Agreement::all_or_none(const std::string& what, const std::function<void()>& work) {
  std::exception_ptr of_rank;
  int64_t code = 0;
  try {
    work();
  } catch (const CommError&) {
    throw;  // the others cannot be reached
  } catch (const std::exception& error) {
    const auto note = [&]<typename Kind>(const Kind& known) {
      of_rank = std::make_exception_ptr(Kind(cat(what, ": ", known.what())));
      code = known.exit_code();
    };
    const bool of_machine = take_machine_error_before_bug(error, note);
    if (const auto* ours = dynamic_cast<const Error*>(&error); ours != nullptr && !of_machine) {
      of_rank = std::current_exception();
      code = ours->exit_code();
    } else if (!of_machine) {
      note(InternalError(error.what()));
    }
  }
  const int64_t worst = largest(of_rank ? (group_.rank() + 1) * kCodes + code : 0);
  if (of_rank) std::rethrow_exception(of_rank);
  if (worst == 0) return;
  const std::string message = cat("rank ", worst / kCodes - 1, " failed while ", what, "; ", kAnotherSaysWhy);
  const int64_t kind = worst % kCodes;
  if (kind == ConfigError::kExitCode) throw ConfigError(message);
  if (kind == DataError::kExitCode) throw DataError(message);
  if (kind == SystemFault::kExitCode) throw SystemFault(message);
  throw InternalError(message);
}

void Agreement::while_rank_0_works(const std::string& what, const std::function<void()>& work) {
  constexpr std::chrono::milliseconds kBetweenLooks(200);
  std::future<void> done;
  all_or_none(what, [&] {  // the system may refuse the thread
    if (group_.rank() != 0) return;
    done = std::async(std::launch::async, [&, threads = at::get_num_threads()] {
      at::set_num_threads(threads);  // OpenMP keeps the number for each thread
      work();
    });
  });
  const auto at_work = [&] {
    return done.valid() && done.wait_for(kBetweenLooks) == std::future_status::timeout;
  };
  while (any(at_work())) continue;
  all_or_none(what, [&] {
    if (done.valid()) done.get();
  });
}

template <typename T>
std::vector<std::vector<T>> Agreement::gather(const std::vector<T>& values) {
  const at::Tensor row = tensor_of(values, device_, group_).unsqueeze(0);
  const std::vector<int64_t> rows(static_cast<size_t>(group_.size()), 1);
  const std::vector<T> of_ranks = values_of<T>(all_gather(group_, row, rows), group_);
  std::vector<std::vector<T>> result;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const T* const begin = of_ranks.data() + rank * values.size();
    result.emplace_back(begin, begin + values.size());
  }
  return result;
}

template <typename T>
std::vector<T> Agreement::largest(const std::vector<T>& values) {
  at::Tensor reduced = tensor_of(values, device_, group_);
  all_reduce_max(group_, reduced);
  return values_of<T>(reduced, group_);
}

template <typename T>
std::vector<T> Agreement::sum(const std::vector<T>& values) {
  at::Tensor reduced = tensor_of(values, device_, group_);
  all_reduce_sum(group_, reduced);
  return values_of<T>(reduced, group_);
}

template std::vector<std::vector<int64_t>> Agreement::gather(const std::vector<int64_t>& values);
template std::vector<std::vector<double>> Agreement::gather(const std::vector<double>& values);
template std::vector<int64_t> Agreement::largest(const std::vector<int64_t>& values);
template std::vector<double> Agreement::largest(const std::vector<double>& values);
template std::vector<int64_t> Agreement::sum(const std::vector<int64_t>& values);
template std::vector<double> Agreement::sum(const std::vector<double>& values);

int64_t Agreement::of_rank_0(int64_t value) {
  at::Tensor everywhere = tensor_of(std::vector{value}, device_, group_);
  broadcast(group_, everywhere, 0);
  return values_of<int64_t>(everywhere, group_).front();
}

std::string Agreement::first_text(const std::string& of_rank) {
  const std::vector<int64_t> bytes = gather_one(static_cast<int64_t>(of_rank.size()));
  const auto has = std::find_if(bytes.begin(), bytes.end(), [](int64_t of) { return of > 0; });
  if (has == bytes.end()) return "";
  const auto rank = static_cast<int>(has - bytes.begin());
  at::Tensor text = at::empty({*has}, at::kByte);
  if (rank == group_.rank()) std::copy(of_rank.begin(), of_rank.end(), text.mutable_data_ptr<uint8_t>());
  text = to_device(text, device_, group_);
  broadcast(group_, text, rank);
  const std::vector<uint8_t> bytes_of_text = values_of<uint8_t>(text, group_);
  return {bytes_of_text.begin(), bytes_of_text.end()};
}

}  // namespace trireme
