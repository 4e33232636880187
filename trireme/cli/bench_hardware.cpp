#include "trireme/cli/bench_hardware.h"

#include <algorithm>
#include <iostream>
#include <sys/stat.h>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_presets.h"
#include "trireme/cli/owned_folder.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/initial_values.h"

namespace trireme {
namespace {

// A folder with the preset tiny, for as long as the engine is made.
class TinyModelFolder {
 public:
  TinyModelFolder() : folder_(temporary_folder() / "trireme-bench-", S_IRWXU) {
    const ModelConfig config = parse_model_config(find_model_preset("tiny").config, "preset tiny");
    const ModelLayout layout = make_model_layout(config);
    write_checkpoint(folder_.path(), config, layout,
                     [&](int unit) {
                       return initial_unit_values(layout.units[static_cast<size_t>(unit)], config,
                                                  /*seed=*/0);
                     },
                     at::kFloat, {});
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  OwnedFolder folder_;
};

std::string spread_of_rates(const RateTable& table) {
  const auto [least, most] = std::ranges::minmax_element(table.points, {}, &RatePoint::per_second);
  const auto in_units = [](double rate) { return format_fixed(rate / 1e9, 2); };
  return table.points.size() == 1 ? in_units(most->per_second)
                                  : cat(in_units(least->per_second), " to ", in_units(most->per_second));
}

std::string text_of(const HardwareProfile& profile) {
  std::string text = cat(profile.description, ": ", format_bytes(profile.memory_bytes), " a rank, ",
                         format_bytes(profile.host_memory_bytes), " of the host\n",
                         "rates in 1e9 a second, least to most by size    2 bytes           4 bytes\n");
  for (const auto& [kind, name] : enum_names(WorkKind{})) {
    const std::string narrow = spread_of_rates(profile.rates_16_bit.at(kind));
    text += cat("  ", name, std::string(46 - std::string(name).size(), ' '), narrow,
                std::string(std::max<size_t>(18, narrow.size() + 1) - narrow.size(), ' '),
                spread_of_rates(profile.rates_32_bit.at(kind)), "\n");
  }
  const auto link = [&](const char* name, const LinkSpeed& speed) {
    if (speed.bytes_per_second > 0)
      text += cat(name, ": ", format_fixed(speed.latency_seconds * 1e6, 1), " us + bytes / ",
                  format_fixed(speed.bytes_per_second / 1e9, 3), " GB/s\n");
  };
  link("between ranks of a machine", profile.within_machine);
  link("between machines", profile.across_machines);
  link("to the host", profile.to_host);
  link("read from the disk", profile.disk_read);
  link("written to the disk", profile.disk_write);
  return text + cat("a step beside its work: ", format_fixed(profile.step_seconds * 1e3, 2), " ms, and ",
                    format_fixed(profile.micro_batch_seconds * 1e3, 2), " ms for each micro-batch\n");
}

}  // namespace

void BenchHardwareFlags::declare(OptionList& list) {
  list.path("out", out, "file for the profile, which trireme plan --gpu FILE reads");
  list.flag("json", json, "print the profile as one line of JSON");
  list.real("seconds", measure.seconds, above(0),
            "in all, about; more give steadier medians and larger sizes");
  list.path("offload_dir", measure.offload_dir, "folder on the disk to measure; not given: none");
  process.list_device(list);
  process.list_ranks(list);
}

int run_bench_hardware(const std::vector<std::string>& arguments) {
  BenchHardwareFlags flags;
  OptionParser parser(
      "bench hardware",
      "Measures the rate of every kind of work on this device, by the engine's kernels, and the links "
      "between ranks; alone or under trireme launch, where all ranks measure at the same time.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  const RankIdentity identity = rank_identity_from_environment();
  EngineOptions options;
  flags.process.prepare(options, identity);
  const c10::DeviceGuard guard(options.device);
  const auto world = join_run(identity, options, flags.process);
  HardwareProfile profile = measure_hardware(*world, options.device, flags.measure);
  {
    const TinyModelFolder tiny;
    const auto engine = assemble(*world, tiny.path(), options);
    measure_overhead(*engine, profile);
  }
  if (identity.rank != 0) return 0;
  const Json json = to_json(profile);
  if (!flags.out.empty()) replace_file(flags.out, json.dump(1) + "\n");
  if (flags.json)
    std::cout << json.dump() << std::endl;
  else
    std::cout << text_of(profile)
              << (flags.out.empty() ? std::string("--out FILE keeps this for trireme plan --gpu FILE\n")
                                    : cat(flags.out.string(), " has the profile\n"))
              << std::flush;
  return 0;
}

}  // namespace trireme
