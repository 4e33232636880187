#include "trireme/plan/script_changes.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/plan_files.h"
#include "trireme/plan/unified_diff.h"

namespace trireme {
namespace {

constexpr const char* kPackage = "trireme.hf";
constexpr const char* kWrapper = "with_sequence_parallel";

std::string python_literal(const Json& value) {
  return value.is_boolean() ? (value.get<bool>() ? "True" : "False") : value.dump();
}

// ", keyword=value" behind the last argument, on a line of its own where that one has its own. `is_first`: of
// those that are added to a call.
TextEdit new_argument(const std::string& text, const PythonCall& call, const std::string& argument,
                      bool is_first) {
  if (call.arguments.empty()) return {call.open + 1, call.open + 1, (is_first ? "" : ", ") + argument};
  const PythonArgument& last = call.arguments.back();
  const size_t line = text.rfind('\n', last.begin) + 1;  // npos + 1: the first
  const std::string before = text.substr(line, last.begin - line);
  const bool has_own_line = line > call.open && before.find_first_not_of(" \t") == std::string::npos;
  return {last.end, last.end, cat(has_own_line ? cat(",\n", before) : std::string(", "), argument)};
}

// A script as a diff names it, which `git apply` takes in no other form than below a folder.
struct DiffName {
  std::string folder, name;  // folder: empty is the working folder
};
DiffName diff_name(const std::string& file) {
  namespace fs = std::filesystem;
  const fs::path script = fs::absolute(file), folder = fs::weakly_canonical(script.parent_path()),
                 name = script.filename(), here = (folder / name).lexically_relative(fs::current_path());
  if (!here.empty() && *here.begin() != "..") return {"", here.generic_string()};
  return {folder.string(), name.string()};
}

class ScriptEditor {
 public:
  ScriptEditor(const TrainerScript& script, const PlanRequest& request, const Planned& planned)
      : script_(script),
        source_(script.source),
        request_(request),
        planned_(planned),
        c_(planned.configuration) {}

  ScriptChanges all() {
    for (const std::string& unknown : script_.unknown) notes_.push_back(cat("not found: ", unknown, "."));
    share_samples();
    set_arguments();
    tell_of_memory();
    const auto [folder, name] = diff_name(script_.file);
    std::string diff = unified_diff(name, source_.text, edits_);
    if (!diff.empty() && !folder.empty()) notes_.push_back(cat("Apply the diff in ", folder, "."));
    return {std::move(diff), launch(), std::move(notes_)};
  }

 private:
  std::string line_of(const PythonArgument& argument) const {
    return cat("line ", source_.line_of(argument.begin));
  }

  std::string sizes() const {
    std::string text;
    if (c_.data_parallel > 1) text += cat(", sp_size=", c_.sequence_ranks());
    if (c_.ring > 1) text += cat(", sp_ring=", c_.ring);
    return text;
  }

  void share_samples() {
    if (c_.sequence_ranks() == 1 && !script_.wrapped) {
      notes_.push_back("The plan shares no sample among ranks: the trainer stays as it is.");
      return;
    }
    const PythonCall& call = script_.trainer_call();
    if (script_.wrapped) {
      set(call, "sp_size", c_.sequence_ranks(), c_.data_parallel > 1);
      set(call, "sp_ring", c_.ring, c_.ring > 1);
      return;
    }
    edits_.push_back({call.begin, call.begin, cat(kWrapper, "(")});
    edits_.push_back({call.open, call.open, cat(sizes(), ")")});
    import(kWrapper);
  }

  // From trireme.hf, after the statement that the trainer's name is from: of two statements that give a name,
  // Python takes the later one.
  void import(const std::string& name) {
    const auto known = source_.imports.find(name);
    if (known != source_.imports.end() && known->second.name == cat(kPackage, ".", name)) return;
    std::string from = script_.trainer_call().callee;
    if (script_.wrapped) from = script_.trainer_call().arguments.front().written;
    from = from.substr(0, from.find('.'));
    while (!source_.imports.contains(from)) {
      const std::string base = source_.classes.at(from).front();  // as PythonSource::resolved found it
      from = base.substr(0, base.find('.'));
    }
    const PythonImport& of_trainer = source_.imports.at(from);
    const bool is_later =
        known != source_.imports.end() && known->second.statement_end > of_trainer.statement_end;
    const PythonImport& import = is_later ? known->second : of_trainer;
    const std::string& text = source_.text;
    const size_t line = text.rfind('\n', import.statement_begin) + 1;
    const std::string indent = text.substr(line, text.find_first_not_of(" \t", line) - line);
    const size_t end = text.find('\n', import.statement_end);
    const std::string statement = cat("from ", kPackage, " import ", name, "\n");
    const bool ends_its_line = end != std::string::npos && end < script_.trainer_call().begin;
    const size_t at = ends_its_line ? end + 1 : import.statement_begin;
    // First among the edits there: the trainer may stand in the next line.
    edits_.insert(edits_.begin(), {at, at, ends_its_line ? indent + statement : statement + indent});
  }

  // Python takes a keyword once, and ** may hold it.
  void add(const PythonCall& call, const std::string& keyword, const std::string& written) {
    const auto unpacked = std::ranges::find_if(call.arguments, [](const PythonArgument& argument) {
      return argument.keyword.empty() && argument.written.starts_with("**");
    });
    if (unpacked != call.arguments.end()) {
      notes_.push_back(cat("not found: ", keyword, ", which ", line_of(*unpacked), " may give by ",
                           unpacked->written, ". Let it be ", written, "."));
      return;
    }
    edits_.push_back(new_argument(source_.text, call, cat(keyword, "=", written),
                                  /*is_first=*/extended_.insert(call.open).second));
  }

  // keyword=value in a call: where it is there with another value, or missing and `needed`.
  void set(const PythonCall& call, const std::string& keyword, const Json& value, bool needed) {
    const PythonArgument* argument = call.find(keyword);
    const std::string written = python_literal(value);
    if (argument == nullptr) {
      if (needed) add(call, keyword, written);
    } else if (!argument->value) {
      notes_.push_back(cat("not found: ", keyword, ", which ", line_of(*argument), " gives as ",
                           argument->written, ". Let it be ", written, "."));
    } else if (*argument->value != value) {
      edits_.push_back({argument->value_begin, argument->end, written});
    }
  }

  void set_arguments() {
    std::vector<std::pair<std::string, Json>> values;
    if (const std::string length = script_.length_keyword(); !length.empty())
      values.emplace_back(length, planned_.tokens());
    values.emplace_back("per_device_train_batch_size", c_.batch);
    values.emplace_back("gradient_accumulation_steps", c_.accumulation);
    if (!script_.arguments) {
      std::string flags;
      for (const auto& [keyword, value] : values) flags += cat(" --", keyword, " ", value.dump());
      notes_.push_back(cat("The trainer's arguments:", flags, "."));
      return;
    }
    const PythonCall& call = source_.calls[*script_.arguments];
    for (const auto& [keyword, value] : values) {
      const bool is_default = (keyword == "gradient_accumulation_steps" && value == 1) ||
                              (keyword == "per_device_train_batch_size" && value == 8);
      set(call, keyword, value, !is_default);
    }
    if (script_.length_keyword().empty())
      notes_.push_back(cat("transformers' Trainer cuts no samples: let your data have at most ",
                           planned_.tokens(), " tokens each."));
    if (c_.recompute.policy != Recompute::none && script_.trainer_class == "transformers.Trainer")
      set(call, "gradient_checkpointing", true, true);
    if (call.find("use_liger_kernel") != nullptr) set(call, "use_liger_kernel", false, false);
    set_parallelism(call);
    shard_parameters(call);
    tell_of_precision(call);
    tell_of_packing(call);
  }

  void set_parallelism(const PythonCall& call) {
    const PythonArgument* argument = call.find("parallelism_config");
    if (argument == nullptr || c_.sequence_ranks() == 1) return;
    const std::string ring = c_.ring > 1 ? cat(", sp_ring=", c_.ring) : "";
    edits_.push_back({argument->value_begin, argument->end,
                      cat("ParallelismConfig(sp_size=", c_.sequence_ranks(), ring, ")")});
    import("ParallelismConfig");
  }

  void shard_parameters(const PythonCall& call) {
    const PythonArgument *deepspeed = call.find("deepspeed"), *fsdp = call.find("fsdp");
    if (deepspeed != nullptr) {
      notes_.push_back(cat("DeepSpeed's configuration (", line_of(*deepspeed), ", ", deepspeed->written,
                           "): ZeRO stage ", c_.zero,
                           ", train_batch_size \"auto\", no sequence_parallel_size."));
    } else if (fsdp != nullptr) {
      notes_.push_back(cat("FSDP (", line_of(*fsdp),
                           ") shards over all ranks, those that share a sample too; the plan has ZeRO ",
                           c_.zero, "."));
    } else if (c_.zero > 0) {
      Json config;
      for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                              "gradient_accumulation_steps", "gradient_clipping"})
        config[key] = "auto";
      for (const char* key : {"bf16", "fp16"}) config[key] = {{"enabled", "auto"}};
      config["zero_optimization"] =
          deepspeed_config_of(request_, planned_, /*max_grad_norm=*/0)["zero_optimization"];
      set(call, "deepspeed", config, true);
    }
  }

  void tell_of_precision(const PythonCall& call) {
    for (const char* precision : {"bf16", "fp16"}) {
      const PythonArgument* argument = call.find(precision);
      const bool planned = name_of(request_.settings.precision) == std::string(precision);
      const bool by_default =
          precision == std::string("bf16") && script_.trainer_class != "transformers.Trainer";
      const bool in_script = argument != nullptr ? argument->value && *argument->value == true : by_default;
      if (planned != in_script && (argument == nullptr || argument->value))
        notes_.push_back(cat("The plan is for ", name_of(request_.settings.precision), ", the script says ",
                             precision, "=", in_script ? "True" : "False",
                             argument == nullptr ? " by its default" : "",
                             "; the diff leaves that as it is."));
    }
  }

  // The launch line cannot say it: with a TEXT that is one document, `truncate` would keep one sample.
  void tell_of_packing(const PythonCall& call) {
    const PythonArgument *packing = call.find("packing"), *strategy = call.find("packing_strategy");
    if (packing == nullptr || !packing->value || *packing->value != true) return;
    constexpr std::pair<const char*, const char*> kNative[] = {
        {"bfd", "--packing best_fit --long_documents truncate, with data of a document a line (.jsonl)"},
        {"bfd_split", "--packing best_fit, with data of a document a line (.jsonl)"},
        {"wrapped", "--packing concat"}};
    for (const auto& [of_trl, native] : kNative)
      if (strategy == nullptr ? of_trl == std::string("bfd") : strategy->value && *strategy->value == of_trl)
        notes_.push_back(cat(line_of(*packing), ": packing=True, by the strategy ", of_trl, ", is natively ",
                             native, "."));
  }

  void tell_of_memory() {
    if (!request_.hardware.is_gpu) return;
    notes_.push_back(
        cat("The plan's memory and time are those of the native command. In Python the same tiles and "
            "offload are blocks around "
            "trainer.train(): trireme.tile_mlp(model)",
            c_.offload.activations != Offload::none ? ", trireme.offload_activations(model)" : "",
            script_.trainer_class == "transformers.Trainer" ? ", trireme.fused_loss(model)" : "",
            " (docs/huggingface.md, Memory)."));
  }

  std::string launch() const {
    const int ranks = c_.ranks(), machine = request_.hardware.devices_per_machine;
    if (ranks == 1) return cat("python ", script_.file);
    if (ranks <= machine) return cat("torchrun --nproc_per_node ", ranks, " ", script_.file);
    return cat("torchrun --nnodes ", ranks / machine, " --nproc_per_node ", machine,
               " --rdzv_backend c10d --rdzv_endpoint HOST:29500 ", script_.file,
               "    # on each machine; HOST: one of them");
  }

  const TrainerScript& script_;
  const PythonSource& source_;
  const PlanRequest& request_;
  const Planned& planned_;
  const Configuration& c_;
  std::vector<TextEdit> edits_;
  std::set<size_t> extended_;  // the calls that got an argument, by their opening bracket
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<ScriptValue> script_values(const TrainerScript& script) {
  std::vector<ScriptValue> values;
  if (!script.model.empty()) values.push_back({"model", script.model, cat(script.file, ": its model")});
  if (!script.arguments) return values;
  const PythonCall& call = script.source.calls[*script.arguments];
  for (const PythonArgument* argument : call.keywords()) {
    if (!argument->value || argument->value->is_null()) continue;
    const bool is_length = argument->keyword == script.length_keyword();
    values.push_back(
        {is_length ? "max_seq_length" : argument->keyword, *argument->value,
         cat(script.file, " line ", script.source.line_of(argument->begin), ": ", argument->keyword)});
  }
  if (script.trainer_class == "trl.SFTTrainer" && call.find("learning_rate") == nullptr)
    values.push_back({"learning_rate", 2e-5, cat(script.file, ": SFTConfig's default")});
  return values;
}

ScriptChanges script_changes(const TrainerScript& script, const PlanRequest& request,
                             const Planned& planned) {
  return ScriptEditor(script, request, planned).all();
}

}  // namespace trireme
