#include "trireme/engine/load_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/read_ahead.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/base/sum_of.h"
#include "trireme/comm/agreement.h"
#include "trireme/device/memory_account.h"
#include "trireme/model/finite_values.h"
#include "trireme/shard/masters.h"

namespace trireme {
namespace {

constexpr size_t kReadAheadBuffers = 4;  // two hold what is in use, two what is read ahead
constexpr int kMostGathered = 8;         // pieces

// A range of a parameter that this rank's masters hold; elements are counted from the parameter's first.
struct WeightPiece {
  const ParameterSpec* spec = nullptr;
  const SafetensorsEntry* stored = nullptr;
  const SafetensorsEntry* second = nullptr;  // must hold the same values; null: none
  int64_t begin = 0;
  std::vector<int64_t> of_ranks;  // elements that each rank reads, one after the other
  int64_t own_begin = 0;
  int64_t own_elements = 0;  // that this rank reads
};

class WeightLoader {
 public:
  WeightLoader(const CheckpointReader& reader, const ModelLayout& layout,
               const std::vector<UnitShare>& shares, const WeightLoading& loading)
      : layout_(layout), shares_(shares), loading_(loading), pieces_(layout.units.size()) {
    for (size_t unit = 0; unit < layout.units.size(); ++unit)
      for (const ParameterSpec* spec : reader.held_parameters(layout.units[unit]))
        cut({.spec = spec,
             .stored = &reader.stored(*spec),
             .second = reader.second_stored(*spec, layout),
             .of_ranks = {}},
            unit);
    begin_reading();
  }

  // Collective where masters are whole. After a failure, zeros take the place of what is not read.
  void load(size_t unit, const MasterShare& master) {
    const bool gathered = is_gathered(unit);
    for (const WeightPiece& piece : pieces_[unit]) {
      const int64_t elements = sum_of(piece.of_ranks);
      const MasterShare to = master.narrow(piece.spec->offset + piece.begin - shares_[unit].begin, elements);
      const bool checks_as_it_copies =
          !gathered && to.whole.defined() && to.whole.is_cpu() && !to.values.defined();
      at::Tensor own = next(piece);
      if (!own.defined()) {
        if (!gathered) continue;
        own = at::zeros({piece.own_elements}, dtype_of(*piece.stored));
      }
      if (own.scalar_type() == at::kDouble) own = own.to(at::kFloat);
      const auto found = checks_as_it_copies ? copy_and_check(own, to.whole) : first_not_finite(own);
      if (found && problem_.empty())
        note_problem([&] {
          refuse_weight(*piece.stored, *piece.spec, piece.own_begin + *found, own[*found].item<double>());
        });
      if (checks_as_it_copies) continue;
      if (gathered) own = gather_parts(loading_.all, own, piece.of_ranks, loading_.device);
      // Masters on the host of a GPU: the copy waits for the gather, and so for other ranks.
      std::optional<ActivityWait> wait;
      if (gathered && !loading_.device.is_cpu()) wait.emplace(loading_.all.activity());
      to.set(own);
    }
  }

  // Empty: none so far.
  const std::string& problem() const { return problem_; }
  // Whether it is the machine's, not the file's.
  bool is_fault() const { return is_fault_; }

 private:
  // Masters are whole on each of many ranks.
  bool is_gathered(size_t unit) const {
    const int ranks = loading_.all.size();
    return ranks > 1 && shares_[unit].elements == padded_elements(layout_.units[unit].elements, ranks);
  }

  // `piece`: whose parameter it is; what lies in the unit's share becomes pieces.
  void cut(WeightPiece piece, size_t unit) {
    const ParameterSpec& spec = *piece.spec;
    const UnitShare& share = shares_[unit];
    const bool gathered = is_gathered(unit);
    const int64_t begin = std::max<int64_t>(share.begin - spec.offset, 0);
    const int64_t end = std::min(share.begin + share.elements - spec.offset, spec.elements);
    const int ranks = gathered ? loading_.all.size() : 1;
    const int64_t width = safetensors_element_bytes(piece.stored->dtype);
    const int64_t most = loading_.piece_bytes / width * std::min(ranks, kMostGathered);
    for (piece.begin = begin; piece.begin < end; piece.begin += most) {
      const SequenceLayout parts{std::min(most, end - piece.begin), ranks};
      const int rank = gathered ? loading_.all.rank() : 0;
      piece.of_ranks = parts.sizes();
      piece.own_begin = piece.begin + parts.begin(rank);
      piece.own_elements = parts.size(rank);
      pieces_[unit].push_back(piece);
    }
  }

  void begin_reading() {
    std::vector<ReadAhead::Range> ranges;
    int64_t largest = 1;
    for (const std::vector<WeightPiece>& of_unit : pieces_)
      for (const WeightPiece& piece : of_unit)
        for (const SafetensorsEntry* tensor : {piece.stored, piece.second}) {
          if (tensor == nullptr) continue;
          const int64_t width = safetensors_element_bytes(tensor->dtype);
          ranges.push_back(
              {tensor->source, tensor->offset + piece.own_begin * width, piece.own_elements * width});
          largest = std::max(largest, ranges.back().bytes);
        }
    std::vector<std::byte*> buffers;
    for (at::Tensor& memory : memory_) {
      memory = loading_.buffers != nullptr ? loading_.buffers->take(largest)
                                           : at::empty({largest}, at::TensorOptions(at::kByte));
      buffers.push_back(static_cast<std::byte*>(memory.mutable_data_ptr()));
    }
    stream_.emplace(std::move(ranges), std::move(buffers));
  }

  // The piece's values in the file's dtype, valid until the next call; undefined once reading has failed.
  at::Tensor next(const WeightPiece& piece) {
    at::Tensor values;
    note_problem([&] {
      if (!problem_.empty()) return;
      const at::ScalarType dtype = dtype_of(*piece.stored);
      const std::byte* stored = stream_->next();
      if (piece.second != nullptr &&
          std::memcmp(stored, stream_->next(),
                      static_cast<size_t>(piece.own_elements) * c10::elementSize(dtype)) != 0)
        refuse_untied(*piece.second, layout_);
      // Nobody writes to it: from_blob knows no constant memory.
      values = at::from_blob(const_cast<std::byte*>(stored), {piece.own_elements}, at::TensorOptions(dtype));
    });
    return values;
  }

  // The other ranks wait in the exchange: this one goes on, and all throw together.
  template <typename Work>
  void note_problem(const Work& work) {
    try {
      work();
    } catch (const DataError& error) {
      note(error);
    } catch (const SystemFault& error) {
      note(error);
      is_fault_ = true;
    }
  }
  void note(const Error& error) {
    problem_ = error.what() + read_by_text(loading_.all.rank(), loading_.all.size());
  }

  const ModelLayout& layout_;
  const std::vector<UnitShare>& shares_;
  const WeightLoading& loading_;
  std::vector<std::vector<WeightPiece>> pieces_;  // of each unit
  std::string problem_;
  bool is_fault_ = false;
  std::array<at::Tensor, kReadAheadBuffers> memory_;
  std::optional<ReadAhead> stream_;  // ends before its memory
};

}  // namespace

void load_weights(const CheckpointReader& reader, const ModelLayout& layout, ParameterStore& parameters,
                  const WeightLoading& loading) {
  const at::NoGradGuard no_grad;
  const MemoryScope buffers(MemoryCategory::communication);
  WeightLoader loader(reader, layout, parameters.shares(), loading);
  Agreement agreement(loading.all, loading.device);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    loader.load(unit, parameters.open_master(static_cast<int>(unit)));
    parameters.close_master(static_cast<int>(unit));
    if (const std::string problem = agreement.first_text(loader.problem()); !problem.empty()) {
      if (agreement.any(loader.is_fault())) throw SystemFault(problem);
      throw DataError(problem);
    }
  }
}

}  // namespace trireme
