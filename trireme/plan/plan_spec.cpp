#include "trireme/plan/plan_spec.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/option_list.h"
#include "trireme/base/sizes.h"
#include "trireme/base/sum_of.h"
#include "trireme/device/memory_advice.h"
#include "trireme/plan/first_run.h"
#include "trireme/plan/machine_groups.h"
#include "trireme/plan/plan_text.h"
#include "trireme/plan/planned.h"

namespace trireme {
namespace {

constexpr const char* kOpen = "________";
constexpr double kSuddenGrowth = 4;  // of the length, at once

std::string share_of(int64_t bytes, int64_t of_bytes) {
  return cat(format_bytes(bytes), " of ", format_bytes(of_bytes), ", ",
             format_percent(static_cast<double>(bytes) / static_cast<double>(of_bytes)));
}

// Of a table's cell: text from outside has no markup and no new cell.
std::string cell(const std::string& text) {
  std::string safe;
  for (const char letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20) {
      safe += ' ';
      continue;
    }
    if (std::string_view("\\`*_[]<>|&#").find(letter) != std::string_view::npos) safe += '\\';
    safe += letter;
  }
  return safe;
}
std::string spec_row(const std::string& name, const std::string& text) {
  return cat("| ", name, " | ", text, " |\n");
}

int64_t sharing_layers(const ModelSizes& model) {
  int64_t layers = 0;
  for (size_t layer = 0; layer < model.layers_of_keys.size(); ++layer)
    layers += model.shares_keys(layer) ? 1 : 0;
  return layers;
}

// A fence that the text does not close.
std::string code_block(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  return cat(fence, "\n", text, text.ends_with('\n') ? "" : "\n", fence, "\n");
}

class Spec {
 public:
  Spec(const PlanRequest& request, const Plan& plan, const SpecFacts& facts)
      : request_(request),
        plan_(plan),
        facts_(facts),
        best_(plan.best),
        c_(plan.best.configuration),
        hardware_(request.hardware),
        device_(hardware_.device_noun()),
        machines_((c_.ranks() + hardware_.devices_per_machine - 1) / hardware_.devices_per_machine) {}

  std::string text() const {
    return cat("# ", cell(request_.model_name), " at ", format_count(best_.tokens()), " tokens\n\n",
               plan_.fits() ? "" : "**This does not fit: the figures are of what is the least over.**\n\n",
               "| | |\n|---|---|\n", asked(), found(), "\nIt starts by\n\n", code_block(facts_.launch),
               "\n## Before money is spent\n\n", checks(), "\n## Risks\n\n", risks());
  }

 private:
  std::string asked() const {
    const ModelSizes& model = request_.model;
    const int64_t elements = sum_of(model.unit_elements);
    std::string text =
        spec_row("objective", cat(kOpen, " (pre-training, continual pre-training, supervised fine-tuning)"));
    text += spec_row("exact length",
                     cat(format_count(best_.tokens()), " tokens",
                         request_.document_tokens > 0
                             ? cat(", packed of documents of ", format_count(request_.document_tokens))
                             : ""));
    text += spec_row(
        "model",
        cat(cell(request_.model_name), ", ",
            elements < 1'000'000'000 ? format_count(elements)
                                     : cat(format_fixed(static_cast<double>(elements) / 1e9, 2), " billion"),
            " parameters: ", model.layers, " layers, ", model.hidden, " wide, ", model.heads, " query and ",
            model.kv_heads, " key/value heads",
            model.full_heads ? cat(" (with full attention ", model.full_heads->key_value, ", ",
                                   model.full_heads->width, " wide)")
                             : "",
            model.layers_of_keys.empty()
                ? ""
                : cat("; ", sharing_layers(model), " of the layers take keys and values of earlier ones"),
            model.has_layer_inputs()
                ? cat("; each layer is told ", model.layer_input_width, " values of a token beside x")
                : "",
            model.delta_net
                ? cat("; ", std::ranges::count(model.delta_layers, true),
                      " of the layers have a DeltaNet of ", model.delta_net->heads.key, " key and ",
                      model.delta_net->heads.value, " value heads in place of attention")
                : "",
            "; trained on ", format_count(facts_.trained_positions), " positions"));
    text += spec_row("hardware",
                     cat(c_.ranks(), " x ", cell(hardware_.name),
                         hardware_.description.empty() ? "" : cat(" (", cell(hardware_.description), ")"),
                         ", on ", machines_, machines_ == 1 ? " machine" : " machines"));
    return text +
           spec_row("least acceptable speed",
                    request_.target_tokens_per_second > 0
                        ? cat(rate_text(request_.target_tokens_per_second), " tokens/s in all: ",
                              plan_.reaches(request_.target_tokens_per_second) ? "reached" : "not reached")
                        : cat(kOpen, " tokens/s for each ", device_));
  }

  std::string found() const {
    const StepTime& time = best_.time;
    const PlannedMemory& memory = best_.memory;
    std::string text = spec_row("configuration", cell(configuration_text(best_)));
    text += spec_row("precision", name_of(request_.settings.precision));
    text += spec_row("a step", cat(c_.samples(), " samples, ",
                                   format_count(std::llround(best_.step.tokens())), " tokens"));
    text += spec_row("expected throughput",
                     cat(rate_text(best_.device_tokens_per_second()), " tokens/s for each ", device_, ", ",
                         rate_text(time.tokens_per_second), " in all; MFU ", format_percent(time.mfu)));
    text += spec_row("a step takes",
                     cat(format_fixed(time.seconds, 2), " s, between ", format_fixed(time.least_seconds, 2),
                         " and ", format_fixed(time.most_seconds, 2)));
    if (const int64_t tokens = request_.token_budget; tokens > 0)
      text += spec_row(
          "budget", cat(format_count(tokens), " tokens: ", format_fixed(plan_.seconds_for(tokens) / 86400, 1),
                        " days, ", format_count(std::llround(plan_.device_hours_for(tokens))), " ", device_,
                        "-hours, without restarts and evaluation"));
    text += spec_row(cat("memory of each ", device_), share_of(memory.device_bytes, hardware_.memory_bytes));
    text += spec_row("by category, when fullest", categories_text(memory.forecast.fullest.bytes));
    if (memory.host_bytes > 0)
      text +=
          spec_row("host memory of each machine",
                   cat(memory.limits.host_bytes > 0
                           ? share_of(memory.host_bytes, hardware_.host_memory_bytes)
                           : cat(format_bytes(memory.host_bytes), "; the profile does not say of how much"),
                       ": ", categories_text(memory.forecast.host), " for each ", device_));
    return text + spec_row("longest sample here", cat(format_count(plan_.longest_tokens), " tokens"));
  }

  double device_share() const {
    return static_cast<double>(best_.memory.device_bytes) / static_cast<double>(hardware_.memory_bytes);
  }

  // On the fewest ranks that exchange.
  Planned smoke_test() const {
    Configuration small = c_;
    small.data_parallel = 1;
    const int ranks = std::min(2, c_.ranks());
    small.ulysses = static_cast<int>(std::min<int64_t>(ranks, request_.model.heads));
    small.ring = ranks / small.ulysses;
    return make_planned(request_, small, std::min(kSmokeTokens, best_.tokens()));
  }

  std::string checks() const {
    const Planned smoke = smoke_test();
    const int ulysses = smoke.configuration.ulysses, ring = smoke.configuration.ring, ranks = ulysses * ring;
    const bool gathered = request_.settings.gathers_keys && c_.ring > 1;
    const double share = device_share();
    const std::string validate = "`trireme validate` (docs/validate.md)";
    std::string text =
        cat("- [ ] A smoke test of ", format_count(smoke.tokens()), " tokens on ", ranks, " ", device_,
            ranks == 1 ? "" : "s", " runs: ", validate, " with the run's options, but `--max_seq_length ",
            smoke.tokens(), " --ulysses ", ulysses, " --ring ", ring,
            gathered && ring == 1 ? " --ring_method ring" : "", "`\n");
    text += cat("- [ ] Peak memory is below ", format_percent(kFirstRunMemoryShare), " of each ", device_,
                ": planned ", format_percent(share),
                share < kFirstRunMemoryShare ? std::string()
                                             : cat(", which is not; plan with `--memory_share ",
                                                   number_text(kFirstRunMemoryShare), "` for a first run"),
                ". `trireme train --dry_run` measures it\n");
    text +=
        "- [ ] Attention masks are equal on the ranks that share a sample: checked by `trireme validate`\n";
    text += cat("- [ ] 50 steps have no NaN and a sane loss, which begins near ln(vocabulary) = ",
                format_fixed(std::log(static_cast<double>(request_.model.vocab)), 2),
                " or below: checked by `trireme validate`\n");
    text += cat("- [ ] Tokens/s of those steps lie between ",
                rate_text(smoke.step.tokens() / smoke.time.most_seconds / ranks), " and ",
                rate_text(smoke.step.tokens() / smoke.time.least_seconds / ranks), " for each ", device_,
                ", of the smoke test's length; beside published numbers: ", kOpen, "\n");
    return text + cat("- [ ] The hardware is what the plan took it for: `trireme bench hardware` on it, then "
                      "this plan with `--gpu` of its file\n");
  }

  std::string risks() const {
    std::string text;
    const auto risk = [&](const auto&... words) { text += cat("- ", words..., "\n"); };
    const int64_t document =
        request_.document_tokens > 0 ? std::min(request_.document_tokens, best_.tokens()) : best_.tokens();
    if (document > facts_.trained_positions) {
      const double times = static_cast<double>(document) / static_cast<double>(facts_.trained_positions);
      risk("**Rotary positions.** The model was trained on ", format_count(facts_.trained_positions),
           " positions, and this asks for ", format_fixed(times, 1),
           " times as many: without --rope_scaling it learns nothing of use beyond them, with it quality has "
           "to be shown (needle in a haystack, long documents).");
      if (times >= kSuddenGrowth)
        risk(
            "**A jump in length.** Grow in stages, each from the one before with a lower learning rate: "
            "`trireme plan --stages ",
            facts_.trained_positions * 2, ",...,", document, "`.");
    }
    const int machine = hardware_.devices_per_machine;
    if (crosses_machines(c_.ranks(), c_.ulysses, machine))
      risk("**Ulysses over machines.** Groups of ", c_.ulysses, " ", device_,
           "s do not fit into machines of ", machine, ": every layer exchanges heads over the network.");
    if (c_.ring > 1 && crosses_machines(c_.ranks(), c_.sequence_ranks(), machine))
      risk("**Ring over machines.** ", c_.ring,
           " groups pass keys and values over the network; long documents hide it behind attention, short "
           "ones do not.");
    if (device_share() > kFirstRunMemoryShare)
      risk("**Memory of the ", device_, ".** ", format_percent(device_share()),
           " is planned; fragments of a long run, or another process, may take the rest.");
    const PlannedMemory& memory = best_.memory;
    if (memory.host_bytes > 0) {
      if (memory.limits.host_bytes == 0)
        risk("**Host memory.** ", format_bytes(memory.host_bytes),
             " are needed on each machine; the profile does not say what there is.");
      else
        risk("**Host memory.** ", share_of(memory.host_bytes, hardware_.host_memory_bytes),
             " on each machine, pinned; what a job scheduler allows may be less.");
    }
    if (uses_disk(best_.step.inputs.offload))
      risk("**Disks.** The step waits for a local disk; a shared or slow one is many times slower.");
    for (const std::string& line : plan_.advice) risk("**Other axes and limits.** ", line);
    const std::string estimated = estimated_figures(request_);
    risk("**The figures.** Times may be off by ", format_percent(hardware_.time_error_share),
         estimated.empty() ? "" : cat("; estimated of this hardware: ", cell(estimated)), ".");
    if (machines_ > 1)
      risk("**Failures.** With ", c_.ranks(), " ", device_,
           "s some fail within days: save often (`--save_steps`, `--save_minutes`), and resume.");
    return text;
  }

  const PlanRequest& request_;
  const Plan& plan_;
  const SpecFacts& facts_;
  const Planned& best_;
  const Configuration& c_;
  const HardwareProfile& hardware_;
  const char* const device_;
  const int machines_;
};

}  // namespace

std::string plan_spec(const PlanRequest& request, const Plan& plan, const SpecFacts& facts) {
  return Spec(request, plan, facts).text();
}

}  // namespace trireme
