#include "trireme/train/checkpoint.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/resume.h"

#include "tests/support/file_bytes.h"
#include "tests/support/file_operations.h"
#include "tests/support/refused_memory.h"
#include "tests/support/small_files.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::tensors_of;

EngineOptions adamw() {
  EngineOptions options;
  options.optimizer.weight_decay = 0.1;
  return options;
}

// Builds an engine on each of `ranks` threads and takes one step, so that moments are not zero.
void with_engines(int ranks, const fs::path& model, const std::function<void(Engine&, Agreement&)>& body,
                  EngineOptions options = adamw()) {
  at::set_num_threads(1);
  options.ulysses = ranks;
  run_ranks_as_threads(ranks, [&](World& world) {
    const auto engine = assemble(world, model, options);
    Agreement agreement(*engine->mesh().all, at::kCPU);
    const int rank = engine->mesh().sp->rank();
    engine->train_step({testing::slice_of_batch(1, 24, 70, 5, ranks, rank)}, 1e-3);
    body(*engine, agreement);
  });
}

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() : run_(folder_.path() / "run") {
    testing::write_tiny_model(model_, testing::tiny_llama_config());
    std::ofstream(model_ / "tokenizer.json") << "{}";
    run_.prepare();
  }

  void save(int ranks, int64_t step, int64_t limit = 0) {
    with_engines(ranks, model_, [&](Engine& engine, Agreement& agreement) {
      save_checkpoint(run_, {step, {{"step", step}}, model_}, engine, agreement, limit);
    });
  }

  std::vector<int64_t> steps() const {
    std::vector<int64_t> all;
    for (const CheckpointEntry& entry : run_.list()) all.push_back(entry.step);
    return all;
  }

  std::string problem_of(int64_t step) const {
    return testing::message_of<DataError>([&] { verify_checkpoint(run_.checkpoint(step)); });
  }

  std::optional<int64_t> newest() {
    told_.clear();
    return find_checkpoint(run_.path(), [&](const std::string& note) { told_ += note; }).step;
  }

  // What each rank goes on from, or the DataError that refuses it.
  std::vector<std::string> chosen(const std::string& resume_from_checkpoint, int ranks) const {
    std::vector<std::string> told(static_cast<size_t>(ranks));
    run_ranks_as_threads(ranks, [&](World& world) {
      const auto group = world.make_group("all", {world.identity().all_ranks()});
      Agreement agreement(*group, at::kCPU);
      TrainOptions options;
      options.resume_from_checkpoint = resume_from_checkpoint;
      std::optional<CheckpointEntry> entry;
      std::string& mine = told[static_cast<size_t>(world.rank())];
      mine = testing::message_of<DataError>([&] {
        entry = choose_checkpoint(options, run_, world.identity(), agreement, [](const std::string&) {});
      });
      if (entry) mine = cat("step ", entry->step);
    });
    return told;
  }

  TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "model";
  RunDirectory run_;
  std::string told_;  // by newest()
};

// Else one rank at a time copies from its device and writes, and the others wait for it.
TEST_F(Checkpoint, is_taken_by_all_ranks_together) {
  std::atomic<int> taking = 0;
  with_engines(2, model_, [&](Engine& engine, Agreement& /*agreement*/) {
    bool is_first = true;
    for_each_state(engine, [&](const UnitSpec&, const std::string&, const at::Tensor&) {
      if (!std::exchange(is_first, false)) return;
      ++taking;
      for (int i = 0; i < 4000 && taking < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(taking, 2);
    });
  });
}

TEST_F(Checkpoint, read_back_is_bitwise_what_was_saved_at_any_number_of_ranks) {
  for (const int writers : {1, 2, 3}) {
    save(writers, writers);
    const auto saved = tensors_of(run_.checkpoint(writers));
    ASSERT_GT(saved.size(), 20U);
    for (const int readers : {1, 2}) {
      with_engines(readers, model_, [&](Engine& engine, Agreement& agreement) {
        for (size_t unit = 0; unit < engine.layout().units.size(); ++unit)
          for (const std::string& name : engine.state_names())
            testing::restore_unit(engine, static_cast<int>(unit), name,
                                  at::full({engine.layout().units[unit].elements}, 7.0));
        const Json state = read_checkpoint(run_.checkpoint(writers), engine).trainer_state;
        EXPECT_EQ(state["step"], writers);
        EXPECT_EQ(engine.progress().optimizer_steps, 1);
        save_checkpoint(run_, {100, state, {}}, engine, agreement, 0);
      });
      EXPECT_EQ(tensors_of(run_.checkpoint(100)), saved) << writers << " ranks, then " << readers;
    }
  }
}

// A name step-N stands for bytes that are on the disk: every file is synced before its folder, that before
// the renaming, and the renaming before the older ones go.
TEST_F(Checkpoint, is_synced_file_by_file_before_it_gets_its_name) {
  save(2, 1);
  const testing::FileOperations operations;
  save(2, 2, 1);
  const auto all = operations.in(run_.checkpoints().string());
  const auto at = [&](const std::string& operation) {
    const auto found = std::find(all.begin(), all.end(), operation);
    EXPECT_NE(found, all.end()) << operation << " in\n" << ::testing::PrintToString(all);
    return found - all.begin();
  };
  const auto published = at("rename step-2.tmp step-2");
  EXPECT_LT(published, at("sync ."));
  EXPECT_LT(at("sync ."), at("rename step-1 step-1.tmp-removed"));
  EXPECT_EQ(all.at(static_cast<size_t>(published) - 1), "sync step-2.tmp");
  EXPECT_EQ(all.at(static_cast<size_t>(published) - 2), "sync step-2.tmp/manifest.json");
  for (const auto& entry : fs::directory_iterator(run_.checkpoint(2))) {
    const std::string name = "step-2.tmp/" + entry.path().filename().string();
    const std::string written = entry.path().extension() == ".safetensors" ? name + ".partial" : name;
    EXPECT_LT(at("write " + written), at("sync " + written));
    EXPECT_LT(at("sync " + written), published);
    if (written == name) continue;
    EXPECT_LT(at("sync " + written), at(cat("rename ", written, " ", name)));
    EXPECT_LT(at(cat("rename ", written, " ", name)), at("write step-2.tmp/manifest.json"));
  }
}

TEST_F(Checkpoint, with_a_value_that_is_not_finite_is_not_saved_and_the_tensor_and_row_are_named) {
  save(2, 1);
  for (const std::string state : {"master", "exp_avg_sq"}) {
    EXPECT_THAT(
        [&] {
          with_engines(2, model_, [&](Engine& engine, Agreement& agreement) {
            at::Tensor values = engine.unit_state(0, state).clone();
            values[values.size(0) - 1] = std::nanf("");  // a row that the batch may never use
            testing::restore_unit(engine, 0, state, values);
            save_checkpoint(run_, {2, {{"step", 2}}, model_}, engine, agreement, 1);
          });
        },
        ::testing::ThrowsMessage<DataError>(::testing::AnyOf(
            HasSubstr("rank 0 failed"), HasSubstr(state == "master" ? "row 69 holds NaN" : state))))
        << state;
    EXPECT_EQ(steps(), std::vector<int64_t>{1});
  }
}

TEST_F(Checkpoint, is_the_same_from_any_zero_stage_and_place_and_is_read_by_any_other) {
  EngineOptions sharded = adamw(), on_disk = adamw();
  sharded.zero = ZeroStage::gradients;
  on_disk.zero = ZeroStage::parameters;
  on_disk.offload = {Offload::disk, Offload::disk, Offload::none, folder_.path(), 0};
  save(3, 1);
  const auto saved = tensors_of(run_.checkpoint(1));
  int64_t step = 2;
  for (const EngineOptions& writer : {sharded, on_disk}) {
    with_engines(
        3, model_,
        [&](Engine& engine, Agreement& agreement) {
          save_checkpoint(run_, {step, {{"step", step}}, model_}, engine, agreement, 0);
        },
        writer);
    EXPECT_EQ(tensors_of(run_.checkpoint(step)), saved) << "written at ZeRO " << int(writer.zero);
    for (const EngineOptions& reader : {adamw(), sharded, on_disk}) {
      with_engines(
          2, model_,
          [&](Engine& engine, Agreement& agreement) {
            const Json state = read_checkpoint(run_.checkpoint(step), engine).trainer_state;
            save_checkpoint(run_, {100, state, {}}, engine, agreement, 0);
          },
          reader);
      EXPECT_EQ(tensors_of(run_.checkpoint(100)), saved) << "read at ZeRO " << int(reader.zero);
    }
    ++step;
  }
}

// With ZeRO 0, too, where every rank needs all: they exchange what each has read.
TEST_F(Checkpoint, gives_each_rank_the_bytes_of_its_share_alone_to_read) {
  save(3, 1);
  const auto saved = tensors_of(run_.checkpoint(1));
  int64_t tensor_bytes = 0, header_bytes = 0;
  for (const auto& [name, values] : saved) tensor_bytes += static_cast<int64_t>(values.size());
  for (const auto& entry : fs::directory_iterator(run_.checkpoint(1)))
    if (entry.path().extension() == ".safetensors")
      header_bytes += SafetensorsFile(entry.path()).header_bytes();
  for (const ZeroStage zero : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::parameters})
    for (const int ranks : {1, 2, 4}) {
      EngineOptions options = adamw();
      options.zero = zero;
      options.read_weights = false;
      options.ulysses = ranks;
      std::vector<int64_t> bytes(static_cast<size_t>(ranks));
      run_ranks_as_threads(ranks, [&](World& world) {
        const auto engine = assemble(world, model_, options);
        bytes[static_cast<size_t>(world.rank())] = read_checkpoint(run_.checkpoint(1), *engine).bytes;
        Agreement agreement = engine->agreement();
        save_checkpoint(run_, {2, {{"step", 2}}, {}}, *engine, agreement, 0);
      });
      EXPECT_EQ(tensors_of(run_.checkpoint(2)), saved) << ranks << " ranks, ZeRO " << int(zero);
      EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), tensor_bytes + ranks * header_bytes);
      // Shares are cut at 16 elements, of each of three states of four units.
      EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()),
                tensor_bytes / ranks + header_bytes + 12 * 16 * 4)
          << ranks << " ranks, ZeRO " << int(zero);
    }
}

// While they exchange shares.
TEST_F(Checkpoint, that_one_rank_cannot_read_is_refused_on_all) {
  save(2, 1);
  with_engines(2, model_, [&](Engine& engine, Agreement& agreement) {
    // Rank 1's share of the embedding alone holds what the first version would have saved.
    if (engine.mesh().all->rank() == 0) {
      const SafetensorsFile file(run_.checkpoint(1) / "rank-00000.safetensors");
      const SafetensorsEntry& entry = file.at("model.embed_tokens.weight");
      std::fstream out(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      const float nan = std::nanf("");
      out.seekp(entry.offset + entry.bytes - int64_t{sizeof(nan)});
      out.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
    }
    agreement.any(false);
    EXPECT_THAT(testing::message_of<DataError>([&] { read_checkpoint(run_.checkpoint(1), engine); }),
                HasSubstr(engine.mesh().all->rank() == 1
                              ? "model.embed_tokens.weight (unit embedding), row 69 holds NaN"
                              : "rank 1 failed while reading"));
  });
}

// The one whose file is too large goes on taking part in what puts units together.
TEST_F(Checkpoint, one_rank_that_cannot_write_does_not_keep_the_others_waiting_where_state_is_sharded) {
  EngineOptions sharded = adamw();
  sharded.zero = ZeroStage::parameters;
  save(2, 1);
  const auto size_of = [&](const char* name) { return fs::file_size(run_.checkpoint(1) / name); };
  // By value: of a list, minmax gives no references.
  const auto sizes = std::minmax({size_of("rank-00000.safetensors"), size_of("rank-00001.safetensors")});
  ASSERT_LT(sizes.first, sizes.second);
  with_engines(
      2, model_,
      [&](Engine& engine, Agreement& agreement) {
        std::optional<testing::SmallFiles> between;
        if (engine.mesh().all->rank() == 0) between.emplace((sizes.first + sizes.second) / 2);
        agreement.any(false);
        EXPECT_THROW(save_checkpoint(run_, {2, {{"step", 2}}, model_}, engine, agreement, 0), DataError);
        agreement.any(false);
      },
      sharded);
  EXPECT_EQ(steps(), std::vector<int64_t>{1});
}

// The others wait in the exchange to which that rank cannot come, so that it can tell them nothing.
TEST_F(Checkpoint, for_which_one_rank_lacks_memory_ends_it_by_what_it_lacks_and_the_others_by_its_loss) {
  testing::RefusedMemory::prepare();
  EngineOptions sharded = adamw();
  sharded.zero = ZeroStage::parameters;
  std::vector<std::string> ended(2);
  const auto save_on_ranks = [&] {
    with_engines(
        2, model_,
        [&](Engine& engine, Agreement& agreement) {
          const int rank = engine.mesh().all->rank();
          std::optional<testing::RefusedMemory> refused;
          if (rank == 1) refused.emplace(engine.layout().units[0].elements * sizeof(float));
          try {
            save_checkpoint(run_, {1, {{"step", 1}}, model_}, engine, agreement, 0);
          } catch (const Error& error) {
            ended[static_cast<size_t>(rank)] = cat(error.kind(), ": ", error.what());
            throw;
          }
        },
        sharded);
  };
  EXPECT_ANY_THROW(save_on_ranks());
  EXPECT_THAT(ended, ElementsAre(HasSubstr("CommError: all_gather of group 'all' failed on rank 0"),
                                 HasSubstr("ConfigError: out of host memory")));
  EXPECT_EQ(steps(), std::vector<int64_t>{});
}

TEST_F(Checkpoint, is_also_a_model_folder_with_the_masters_as_weights) {
  save(2, 1);
  with_engines(1, model_, [&](Engine& engine, Agreement& /*agreement*/) {
    read_checkpoint(run_.checkpoint(1), engine);
    const ModelConfig config = read_model_config(run_.checkpoint(1));
    const ModelLayout layout = make_model_layout(config);
    const CheckpointReader reader(run_.checkpoint(1));
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      at::Tensor flat = at::zeros({layout.units[unit].elements});
      reader.read_unit(layout.units[unit], flat);
      EXPECT_TRUE(at::equal(flat, engine.unit_values(static_cast<int>(unit)))) << layout.units[unit].name;
    }
  });
  EXPECT_TRUE(fs::exists(run_.checkpoint(1) / "tokenizer.json"));
}

TEST_F(Checkpoint, has_the_further_chat_templates_of_its_tokenizer) {
  const fs::path templates = "additional_chat_templates";
  fs::create_directory(model_ / templates);
  for (const char* name : {"tool_use.jinja", "notes.txt"}) std::ofstream(model_ / templates / name) << name;
  save(1, 1);
  EXPECT_TRUE(fs::exists(run_.checkpoint(1) / templates / "tool_use.jinja"));
  EXPECT_FALSE(fs::exists(run_.checkpoint(1) / templates / "notes.txt"));
  EXPECT_TRUE(read_manifest(run_.checkpoint(1)).files.contains("additional_chat_templates/tool_use.jinja"));
  EXPECT_NO_THROW(verify_checkpoint(run_.checkpoint(1)));
}

TEST_F(Checkpoint, has_a_tokenizer_that_cuts_no_sooner_than_its_stretched_model_ends) {
  std::ofstream(model_ / "tokenizer_config.json") << R"({"model_max_length": 512, "x": 1e30})";
  save(1, 1);
  EXPECT_EQ(bytes_of(run_.checkpoint(1) / "tokenizer_config.json"),
            R"({"model_max_length": 512, "x": 1e30})");
  EngineOptions stretched = adamw();
  stretched.rope.scaling = "yarn:4";
  with_engines(
      1, model_,
      [&](Engine& engine, Agreement& agreement) {
        save_checkpoint(run_, {2, {{"step", 2}}, model_}, engine, agreement, 0);
      },
      stretched);
  EXPECT_EQ(bytes_of(run_.checkpoint(2) / "tokenizer_config.json"),
            R"({"model_max_length": 2048, "x": 1e30})");
  EXPECT_NO_THROW(verify_checkpoint(run_.checkpoint(2)));
}

TEST_F(Checkpoint, one_that_a_killed_save_left_is_never_listed_and_goes_at_the_next_save) {
  save(1, 10);
  // As a kill between two files leaves it: under its temporary name, without a manifest.
  fs::copy(run_.checkpoint(10), run_.temporary(20), fs::copy_options::recursive);
  fs::remove(run_.temporary(20) / "manifest.json");
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
  EXPECT_EQ(newest(), 10);
  save(1, 30);
  EXPECT_FALSE(fs::exists(run_.temporary(20)));
  EXPECT_EQ(steps(), (std::vector<int64_t>{10, 30}));
}

TEST_F(Checkpoint, every_kind_of_damage_names_the_file_and_the_one_before_serves) {
  save(2, 1);
  save(2, 2);
  const fs::path whole = folder_.path() / "whole";
  fs::rename(run_.checkpoint(2), whole);
  const auto damage = [&](const std::string& file, const std::function<void(const fs::path&)>& harm) {
    fs::remove_all(run_.checkpoint(2));
    fs::copy(whole, run_.checkpoint(2), fs::copy_options::recursive);
    EXPECT_EQ(problem_of(2), "no error");
    EXPECT_EQ(newest(), 2);
    EXPECT_EQ(told_, "");
    harm(run_.checkpoint(2) / file);
    EXPECT_THAT(problem_of(2), HasSubstr(file));
    EXPECT_EQ(newest(), 1) << file;
    EXPECT_THAT(told_, ::testing::AllOf(HasSubstr("passing over"), HasSubstr("step-2")));
    // Whichever rank's share it is of.
    for (const int ranks : {2, 3}) {
      for (const std::string& told : chosen("true", ranks)) EXPECT_EQ(told, "step 1") << file;
      const std::vector<std::string> told = chosen(run_.checkpoint(2).string(), ranks);
      EXPECT_THAT(told, ::testing::Each(::testing::AllOf(HasSubstr(file), told.front()))) << ranks;
    }
  };
  const auto remove = [](const fs::path& file) { fs::remove(file); };
  const auto truncate = [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); };
  const auto flip = [](const fs::path& file) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekg(-3, std::ios::end);
    const auto byte = static_cast<char>(out.get() ^ 0x10);
    out.seekp(-3, std::ios::end);
    out.put(byte);
  };
  damage("rank-00001.safetensors", remove);
  damage("rank-00001.safetensors", truncate);
  damage("rank-00000.safetensors", flip);
  damage("trainer_state.json", flip);
  damage("manifest.json", truncate);
  damage("manifest.json", remove);
}

// Its run may save meanwhile, so that a rank that looks later lists more.
TEST_F(Checkpoint, that_ranks_look_for_is_the_newest_that_rank_0_finds_and_each_reads_a_share_of_it) {
  for (const int64_t step : {1, 2, 3}) save(1, step);
  const fs::path later = folder_.path() / "later";
  fs::copy(run_.path(), later, fs::copy_options::recursive);
  fs::remove_all(run_.checkpoint(3));
  const auto found = [&](const fs::path& of_rank_0, const fs::path& of_rank_1) {
    std::vector<CheckpointEntry> entries(2);
    run_ranks_as_threads(2, [&](World& world) {
      const auto group = world.make_group("all", {{0, 1}});
      Agreement agreement(*group, at::kCPU);
      entries[static_cast<size_t>(world.rank())] = find_checkpoint(
          world.rank() == 0 ? of_rank_0 : of_rank_1, world.identity(), agreement, [](const std::string&) {});
    });
    EXPECT_EQ(entries[0].step, entries[1].step);
    EXPECT_EQ(entries[0].path.filename(), entries[1].path.filename());
    EXPECT_GT(std::min(entries[0].checked_bytes, entries[1].checked_bytes), 0);
    EXPECT_EQ(entries[0].checked_bytes + entries[1].checked_bytes, verify_checkpoint(entries[0].path));
    return entries[0].step;
  };
  EXPECT_EQ(found(run_.path(), later), 2);
  EXPECT_EQ(found(later, later), 3);
  EXPECT_EQ(found(run_.checkpoint(1), later / "checkpoints" / "step-1"), 1);
  fs::resize_file(later / "checkpoints" / "step-2" / "rank-00000.safetensors", 100);
  EXPECT_EQ(found(run_.path(), later), 1) << "what is broken for one is broken for all";
  const fs::path nowhere = folder_.path() / "nowhere";
  EXPECT_THAT([&] { found(nowhere, run_.path()); },
              ::testing::ThrowsMessage<ConfigError>(HasSubstr("nor a run's folder")));
}

TEST_F(Checkpoint, that_is_looked_for_may_be_one_that_its_run_saved_meanwhile) {
  for (const int64_t step : {1, 2}) save(1, step);
  const fs::path later = folder_.path() / "step-2";
  fs::rename(run_.checkpoint(2), later);
  fs::remove(run_.checkpoint(1) / "rank-00000.safetensors");
  run_ranks_as_threads(1, [&](World& world) {
    const auto group = world.make_group("all", {{0}});
    Agreement agreement(*group, at::kCPU);
    const auto save_meanwhile = [&](const std::string&) { fs::rename(later, run_.checkpoint(2)); };
    EXPECT_EQ(find_checkpoint(run_.path(), world.identity(), agreement, save_meanwhile).step, 2);
  });
}

TEST_F(Checkpoint, the_oldest_ones_beyond_the_limit_go) {
  for (const int64_t step : {1, 2, 9, 10}) save(1, step, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{9, 10}));
  EXPECT_EQ(std::distance(fs::directory_iterator(run_.checkpoints()), fs::directory_iterator()), 2);
}

TEST_F(Checkpoint, a_disk_that_refuses_is_a_data_error_on_every_rank_and_the_earlier_one_stays_whole) {
  save(2, 1);
  with_engines(2, model_, [&](Engine& engine, Agreement& agreement) {
    std::optional<testing::SmallFiles> tiny;
    if (engine.mesh().all->rank() == 0) tiny.emplace(4096);
    agreement.any(false);
    EXPECT_THAT(testing::message_of<DataError>([&] {
                  save_checkpoint(run_, {2, {{"step", 2}}, model_}, engine, agreement, 1);
                }),
                HasSubstr("bytes"));
    agreement.any(false);
  });
  EXPECT_EQ(steps(), std::vector<int64_t>{1});
  EXPECT_EQ(problem_of(1), "no error");
  EXPECT_EQ(std::distance(fs::directory_iterator(run_.checkpoints()), fs::directory_iterator()), 1);
}

TEST_F(Checkpoint, of_another_model_names_the_tensor) {
  save(1, 1);
  Json wider = testing::tiny_llama_config();
  wider["intermediate_size"] = 64;
  testing::write_tiny_model(folder_.path() / "wider", wider);
  with_engines(1, folder_.path() / "wider", [&](Engine& engine, Agreement& /*agreement*/) {
    EXPECT_THAT(testing::message_of<DataError>([&] { read_checkpoint(run_.checkpoint(1), engine); }),
                HasSubstr("mlp"));
  });
}

}  // namespace
}  // namespace trireme
