// What loading reads, and what it makes of it, against the files' bytes.
#include "trireme/engine/load_weights.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/unit_weights.h"
#include "trireme/shard/parameter_store.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensor_bytes.h"
#include "tests/support/unit_parameters.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int kRanks[] = {1, 2, 4};
constexpr ZeroStage kStages[] = {ZeroStage::none, ZeroStage::optimizer, ZeroStage::parameters};

Json config_of(bool tied) {
  Json config = testing::tiny_llama_config();
  config["tie_word_embeddings"] = tied;
  return config;
}

// One file a tensor dtype, as no model has it: every share holds several dtypes. A tied model has both names.
void write_model(const fs::path& folder, bool tied) {
  testing::write_tiny_model(folder, config_of(tied));
  std::map<std::string, at::Tensor> named;
  {
    const SafetensorsFile file(folder / "model.safetensors");
    for (const auto& [name, entry] : file.entries()) {
      at::Tensor values = at::empty(entry.shape);
      entry.read(0, values.mutable_data_ptr(), entry.bytes);
      named[name] = values;
    }
  }
  if (tied) named["lm_head.weight"] = named.at("model.embed_tokens.weight");
  fs::remove(folder / "model.safetensors");
  const std::pair<const char*, at::ScalarType> kinds[] = {
      {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"F64", at::kDouble}};
  Json places = Json::object();
  for (size_t kind = 0; kind < std::size(kinds); ++kind) {
    std::vector<SafetensorsSpec> specs;
    size_t number = 0;
    for (const auto& [name, tensor] : named)
      if ((tied && name == "lm_head.weight"      ? 1
           : name == "model.embed_tokens.weight" ? 1
                                                 : number++ % 4) == kind)
        specs.push_back({name, kinds[kind].first, tensor.sizes().vec()});
    const std::string file = cat("of-", kinds[kind].first, ".safetensors");
    SafetensorsWriter writer(folder / file, specs);
    for (const SafetensorsSpec& spec : specs) {
      const at::Tensor values = named.at(spec.name).to(kinds[kind].second);
      writer.write(spec.name, values.const_data_ptr(), static_cast<int64_t>(values.nbytes()));
      places[spec.name] = file;
    }
    writer.finish();
  }
  std::ofstream(folder / "model.safetensors.index.json") << Json{{"weight_map", places}};
}

struct FileBytes {
  int64_t headers = 0;
  int64_t all = 0;
};
FileBytes file_bytes(const fs::path& folder) {
  FileBytes bytes;
  for (const auto& item : fs::directory_iterator(folder)) {
    if (item.path().extension() != ".safetensors") continue;
    bytes.headers += SafetensorsFile(item.path()).header_bytes();
    bytes.all += static_cast<int64_t>(item.file_size());
  }
  return bytes;
}

// fp32, as libtorch converts the file's bytes; padding is zero.
at::Tensor expected_unit(const SafetensorsSet& weights, const UnitSpec& unit) {
  at::Tensor flat = at::zeros({unit.elements});
  for (const ParameterSpec& spec : unit.parameters) {
    const SafetensorsEntry& entry = weights.at(spec.name);
    std::string bytes = testing::bytes_of(entry);
    flat.narrow(0, spec.offset, spec.elements)
        .copy_(at::from_blob(bytes.data(), {spec.elements}, at::TensorOptions(dtype_of(entry))));
  }
  return flat;
}

// Experts as Qwen3.5's lie, all of a layer in one tensor, of 16 bits; of the last layer down apart.
TEST(LoadWeights, ranks_share_out_tensors_that_hold_all_experts) {
  TemporaryFolder apart, joined;
  testing::write_tiny_model(apart.path(), testing::tiny_qwen3_next_config());
  const ModelConfig config = read_model_config(apart.path());
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(apart.path());
  fs::copy_file(apart / "config.json", joined / "config.json");
  std::vector<SafetensorsSpec> specs;
  std::vector<at::Tensor> values, expected;
  for (const UnitSpec& unit : layout.units) {
    at::Tensor flat = at::zeros({unit.elements});
    reader.read_unit(unit, flat);
    flat = flat.to(at::kBFloat16);
    expected.push_back(flat.to(at::kFloat));
    const auto is_joined = [&](const ParameterSpec& spec) {
      return spec.name.ends_with("gate_up_proj") ||
             (spec.name.ends_with("down_proj") && unit.name == "layer.0");
    };
    const auto add = [&](const ParameterSpec& spec) {
      specs.push_back({spec.name, "BF16", spec.shape});
      values.push_back(parameter_view(flat, spec).contiguous());
    };
    for (const ParameterSpec& spec : unit.joined)
      if (is_joined(spec)) add(spec);
    for (const ParameterSpec& spec : unit.parameters) {
      const bool expert = spec.name.find(".experts.") != std::string::npos;
      const bool down = spec.name.ends_with("down_proj.weight");
      if (!expert || (down && unit.name != "layer.0")) add(spec);
    }
  }
  SafetensorsWriter writer(joined / "model.safetensors", specs);
  for (size_t i = 0; i < specs.size(); ++i)
    writer.write(specs[i].name, values[i].const_data_ptr(), static_cast<int64_t>(values[i].nbytes()));
  writer.finish();
  for (const int ranks : {1, 3})
    for (const ZeroStage zero : kStages)
      run_ranks_as_threads(ranks, [&](World& world) {
        EngineOptions options;
        options.ulysses = ranks;
        options.zero = zero;
        const auto engine = assemble(world, joined.path(), options);
        for (size_t unit = 0; unit < expected.size(); ++unit)
          EXPECT_TRUE(engine->unit_values(static_cast<int>(unit)).equal(expected[unit]))
              << unit << ", " << ranks << " ranks, ZeRO " << static_cast<int>(zero);
      });
}

TEST(LoadWeights, all_ranks_together_read_every_byte_once_and_get_the_files_values) {
  for (const bool tied : {false, true}) {
    TemporaryFolder folder;
    write_model(folder.path(), tied);
    const FileBytes files = file_bytes(folder.path());
    const SafetensorsSet weights(folder.path());
    for (const int ranks : kRanks)
      for (const ZeroStage zero : kStages)
        for (const Precision precision : {Precision::fp32, Precision::bf16}) {
          SCOPED_TRACE(cat(tied ? "tied, " : "", ranks, " ranks, ZeRO ", static_cast<int>(zero)));
          std::vector<int64_t> read(static_cast<size_t>(ranks));
          run_ranks_as_threads(ranks, [&](World& world) {
            EngineOptions options;
            options.ulysses = ranks;
            options.zero = zero;
            options.precision = precision;
            const auto engine = assemble(world, folder.path(), options);
            read[static_cast<size_t>(world.rank())] = engine->weights_read().bytes - files.headers;
            for (size_t unit = 0; unit < engine->layout().units.size(); ++unit)
              EXPECT_TRUE(engine->unit_values(static_cast<int>(unit))
                              .equal(expected_unit(weights, engine->layout().units[unit])))
                  << unit;
          });
          EXPECT_EQ(std::accumulate(read.begin(), read.end(), int64_t{0}), files.all - files.headers);
          EXPECT_LT(*std::ranges::max_element(read), (files.all - files.headers) * 5 / (4 * ranks));
        }
  }
}

// What each rank says that may not begin.
std::vector<std::string> refusals(const fs::path& folder, int ranks, ZeroStage zero) {
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  run_ranks_as_threads(ranks, [&](World& world) {
    EngineOptions options;
    options.ulysses = ranks;
    options.zero = zero;
    texts[static_cast<size_t>(world.rank())] =
        message_of<DataError>([&] { assemble(world, folder, options); });
  });
  return texts;
}

// The last value of a tensor, in its file.
void spoil(const fs::path& folder, const std::string& name, const std::string& bytes) {
  fs::path file;
  int64_t end = 0;
  {
    const SafetensorsSet weights(folder);
    const SafetensorsEntry& entry = weights.at(name);
    file = entry.file();
    end = entry.offset + entry.bytes;
  }
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(end - static_cast<int64_t>(bytes.size()));
  out << bytes;
}

TEST(LoadWeights, what_one_rank_finds_ends_all_in_the_same_words) {
  for (const int ranks : kRanks)
    for (const ZeroStage zero : kStages) {
      SCOPED_TRACE(cat(ranks, " ranks, ZeRO ", static_cast<int>(zero)));
      TemporaryFolder folder;
      write_model(folder.path(), true);
      spoil(folder.path(), "lm_head.weight", std::string("\x11\x11", 2));
      std::vector<std::string> texts = refusals(folder.path(), ranks, zero);
      EXPECT_THAT(texts, Each(AllOf(HasSubstr("tensor 'lm_head.weight' (BF16 [70, 32])"),
                                    HasSubstr("differs from 'model.embed_tokens.weight'"))));
      for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"})
        spoil(folder.path(), name, "\xff\xff");
      texts = refusals(folder.path(), ranks, zero);
      EXPECT_THAT(texts,
                  Each(AllOf(HasSubstr("'model.embed_tokens.weight' (BF16 [70, 32]): row 69 holds NaN"),
                             HasSubstr("of-BF16.safetensors"))));
      EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), 1U);
      if (ranks == 1) continue;
      EXPECT_THAT(texts, Each(HasSubstr(cat("(read by rank ", ranks - 1, " on "))));
    }
}

std::unique_ptr<ParameterStore> make_store(const ModelLayout& layout, Group& all, ZeroStage zero) {
  std::vector<FlatUnit> units;
  for (const UnitSpec& unit : layout.units)
    units.push_back({unit.name, padded_elements(unit.elements, all.size()), {}});
  return zero == ZeroStage::parameters ? make_sharded_parameters(units, all, {})
                                       : make_replicated_parameters(units, all, zero != ZeroStage::none, {});
}

TEST(LoadWeights, a_file_that_is_cut_while_ranks_read_it_ends_all_of_them) {
  const ModelLayout layout = make_model_layout(parse_model_config(config_of(false), "test"));
  for (const int ranks : kRanks)
    for (const ZeroStage zero : kStages) {
      SCOPED_TRACE(cat(ranks, " ranks, ZeRO ", static_cast<int>(zero)));
      TemporaryFolder folder;
      testing::write_tiny_model(folder.path(), config_of(false));
      std::vector<std::string> texts(static_cast<size_t>(ranks));
      run_ranks_as_threads(ranks, [&](World& world) {
        const Mesh mesh = make_mesh(world, {.ulysses = ranks});
        const CheckpointReader reader(folder.path());
        barrier(*mesh.all);
        // The head's last bytes, which the last rank reads.
        const fs::path file = folder / "model.safetensors";
        if (world.rank() == 0) fs::resize_file(file, fs::file_size(file) - 4);
        barrier(*mesh.all);
        const auto store = make_store(layout, *mesh.all, zero);
        texts[static_cast<size_t>(world.rank())] = message_of<DataError>([&] {
          load_weights(reader, layout, *store, {*mesh.all, at::kCPU, nullptr, 256});
        });
      });
      EXPECT_THAT(texts, Each(AllOf(HasSubstr("model.safetensors"), HasSubstr("it was cut or replaced"))));
      EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), 1U);
    }
}

TEST(LoadWeights, what_every_rank_can_see_is_told_before_anything_is_read) {
  for (const int ranks : kRanks) {
    TemporaryFolder folder;
    write_model(folder.path(), false);
    const fs::path file = folder / "of-F16.safetensors";
    fs::resize_file(file, fs::file_size(file) - 3);
    EXPECT_THAT(refusals(folder.path(), ranks, ZeroStage::none),
                Each(AllOf(HasSubstr("of-F16.safetensors"), HasSubstr("interrupted download"))));
    fs::remove(file);
    EXPECT_THAT(refusals(folder.path(), ranks, ZeroStage::parameters),
                Each(AllOf(HasSubstr("of-F16.safetensors"), HasSubstr("shard is missing"))));
  }
}

}  // namespace
}  // namespace trireme
