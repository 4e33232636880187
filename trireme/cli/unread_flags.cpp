#include "trireme/cli/unread_flags.h"

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/text_source.h"
#include "trireme/train/stage_plan.h"

namespace trireme {
namespace {

// As a flag, and not by a file.
bool is_given(const OptionParser& parser, const std::string& flag) {
  return parser.source_of(flag) == "--" + flag;
}

std::vector<std::filesystem::path> data_of_run(const TrainOptions& options, const Json& stages) {
  std::vector<std::filesystem::path> data{options.train_file, options.eval_file};
  for (const Json& stage : stages)
    if (stage.is_object() && stage.contains("train_file") && stage["train_file"].is_string())
      data.emplace_back(stage["train_file"].get<std::string>());
  return data;
}

}  // namespace

void refuse_unread_flag(const OptionParser& parser, bool unread, const std::string& flag,
                        const std::string& reader) {
  if (unread && is_given(parser, flag))
    throw ConfigError(cat("--", flag, " means nothing ", reader, ", or leave it out"));
}

void refuse_flags_of_lines(const OptionParser& parser, const std::vector<std::filesystem::path>& text,
                           const std::string& field_flag) {
  const bool has_lines = std::ranges::any_of(text, may_hold_json_lines);
  for (const std::string& flag : {field_flag, std::string("on_bad_record")})
    refuse_unread_flag(parser, !has_lines, flag,
                       "for a file that is one document; give a .jsonl file, or a folder");
}

void refuse_unread_text_flags(const OptionParser& parser, const std::vector<std::filesystem::path>& data) {
  std::vector<std::filesystem::path> text = data;
  std::erase_if(text, [](const auto& path) { return path.empty() || is_indexed_dataset(path); });
  const auto refuse = [&](bool unread, const char* flag, const char* reader) {
    refuse_unread_flag(parser, unread, flag, reader);
  };
  refuse(text.empty(), "text_field", "for tokenized data; give trireme tokenize --field");
  refuse(text.empty(), "on_bad_record", "for tokenized data; give it to trireme tokenize");
  for (const char* flag : {"append_eos", "no_append_eos"})
    refuse(text.empty(), flag, "for tokenized data; decide it in trireme tokenize (--no_append_eos)");
  refuse_flags_of_lines(parser, text, "text_field");
}

void refuse_unread_lora_flags(const OptionParser& parser, const LoraOptions& lora) {
  for (const std::string& flag : lora_option_names()) {
    refuse_unread_flag(parser, !lora.adapter.empty(), flag,
                       "beside --adapter, whose folder says it; give one of them");
    if (flag != "lora_r") refuse_unread_flag(parser, !lora.given(), flag, "without LoRA; give --lora_r 16");
  }
}

void refuse_unread_flags(const OptionParser& parser, const TrainOptions& o) {
  refuse_unread_lora_flags(parser, o.engine.lora);
  const auto refuse = [&](bool unread, const std::string& flag, const std::string& reader) {
    refuse_unread_flag(parser, unread, flag, reader);
  };
  const bool stages = !o.context_stages.empty(), listed = is_stage_list(o.context_stages);
  const Json list = listed ? parse_stage_list(o.context_stages) : Json::array();
  const bool has_loss_scale = o.engine.precision == Precision::fp16;
  refuse(!has_loss_scale, "initial_loss_scale", "without a loss scale; give --fp16");
  refuse(!has_loss_scale, "loss_scale_window", "without a loss scale; give --fp16");
  refuse(!listed && o.warmup_steps == 0 && o.warmup_ratio == 0, "warmup_type",
         "without a warm-up; give --warmup_steps or --warmup_ratio");
  for (const auto& [option, other] : kCountsOver)
    refuse(is_given(parser, option) && parser.find(option).read().get<double>() > 0, other,
           cat("beside --", option, ", which counts; give it without that"));
  refuse(stages && !listed, "max_seq_length", "with --context_stages LENGTH:STEPS; give the stages lengths");
  refuse(stages, "num_train_epochs", "with --context_stages; give the stages steps");
  refuse(!listed && first_stage_has_peak(o.context_stages), "learning_rate",
         "where the first stage of --context_stages has its own peak; set it there");
  if (!list.empty())
    for (const auto& [name, value] : list.front().items()) {
      // --train_file must be given, --steps is validate's, and DeepSpeed's train_batch_size is divided by the
      // ranks that the flags tell.
      const bool of_ranks = name == "sp" || name == "ulysses" || name == "ring";
      if (name == "train_file" || name == "steps" || (of_ranks && parser.given("deepspeed"))) continue;
      const std::string reader =
          cat("where the first stage of --context_stages sets ", name, "; set it there");
      refuse(true, name, reader);
      for (const char* degree : {"ulysses", "ring"}) refuse(name == "sp", degree, reader);
    }
  refuse(o.engine.save_in_background && o.save_steps == 0 && o.save_minutes == 0, "save_in_background",
         "with --save_steps 0, which saves at the end alone; give --save_steps N or --save_minutes N");
  refuse(o.resume_with_new_data && resume_kind(o) == ResumeKind::none, "resume_with_new_data",
         "in a run that does not resume; give --resume_from_checkpoint");
  refuse_unread_text_flags(parser, data_of_run(o, list));
}

}  // namespace trireme
