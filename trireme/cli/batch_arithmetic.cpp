#include "trireme/cli/batch_arithmetic.h"

#include "trireme/base/error.h"
#include "trireme/cli/config_document.h"

namespace trireme {
namespace {

std::string groups_text(const RunRanks& run) {
  return cat(run.groups(), run.groups() == 1 ? " data-parallel group (" : " data-parallel groups (",
             run.ranks, run.ranks == 1 ? " rank / " : " ranks / ", run.degree, " that share a sample)");
}

std::string text_of(const BatchNumber& number) {
  return cat(number.name, " ", number.value);
}

// What train_batch_size is a multiple of; where both are known it is equal to it.
int64_t unit_of(const BatchNumbers& given, const RunRanks& run) {
  return run.groups() * (given.micro ? given.micro->value : 1) *
         (given.accumulation ? given.accumulation->value : 1);
}

}  // namespace

std::string batch_factors_text(const BatchNumbers& given, const RunRanks& run) {
  return cat(given.micro ? text_of(*given.micro) + " x " : std::string(),
             given.accumulation ? text_of(*given.accumulation) + " x " : std::string(), groups_text(run));
}

std::optional<int64_t> mended_train_batch(const BatchNumbers& given, const RunRanks& run) {
  if (!given.train) return std::nullopt;
  const int64_t unit = unit_of(given, run), train = given.train->value;
  const bool whole = given.micro && given.accumulation;
  if (whole ? train == unit : train % unit == 0) return std::nullopt;
  const int64_t below = train / unit * unit;
  return whole || below == 0 || train - below > unit / 2 ? (whole ? unit : below + unit) : below;
}

Batch resolve_batch(const BatchNumbers& given, const RunRanks& run, const std::string& file) {
  const int64_t unit = unit_of(given, run);
  if (const auto mended = mended_train_batch(given, run)) {
    const std::string fix =
        is_yaml(file) ? ""
                      : cat("; trireme config fix ", file, " --ranks ", run.ranks, " writes such a file");
    if (given.micro && given.accumulation)
      throw ConfigError(cat(file, ": ", text_of(*given.train), " is not ", batch_factors_text(given, run),
                            " = ", unit, "; give \"train_batch_size\": ", unit,
                            ", or leave one of the three out, which then follows", fix));
    const int64_t below = given.train->value / unit * unit;
    throw ConfigError(cat(file, ": ", text_of(*given.train), " is no multiple of ",
                          batch_factors_text(given, run), " = ", unit, "; the nearest are ",
                          below > 0 ? cat(below, " and ") : std::string(), below + unit, fix));
  }
  if (!given.train)
    return {given.micro ? given.micro->value : 1, given.accumulation ? given.accumulation->value : 1};
  const int64_t rest = given.train->value / unit;  // what is left out
  if (given.micro) return {given.micro->value, given.accumulation ? given.accumulation->value : rest};
  return {rest, given.accumulation ? given.accumulation->value : 1};
}

}  // namespace trireme
