//! A small llama model with fixed pseudo-random weights, written as GGUF.

use htc_formats::gguf::{Array, GgmlType, Value, Writer};
use htc_formats::{DType, block};

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Returns an approximately normal number.
    pub fn normal(&mut self) -> f32 {
        let sum: u64 = (0..3)
            .map(|_| {
                let bits = self.bits();
                (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum::<u64>()
            })
            .sum();
        ((sum as f64 + 6.0) / 65536.0 - 6.0) as f32
    }
}

/// Configuration of the model.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Context length.
    pub context: usize,
    /// Experts in place of the dense feed-forward networks; the architecture is then qwen3moe.
    pub experts: Option<TinyExperts>,
    /// Type of matrices; vectors and routers are f32.
    pub dtype: DType,
    /// Adds an output matrix that is not tied to the embedding.
    pub output: bool,
    /// Seed of the weights.
    pub seed: u64,
    /// Metadata that replaces or extends the defaults; `None` removes an entry.
    pub metadata: Vec<(String, Option<Value>)>,
}

/// Mixture of experts of a [`TinyModel`].
#[derive(Clone, Copy, Debug)]
pub struct TinyExperts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts applied to each position.
    pub used: usize,
    /// Width of an expert's hidden layer.
    pub ffn: usize,
}

impl Default for TinyModel {
    /// Rows of the feed-forward layer are not whole q8_0 blocks.
    fn default() -> Self {
        TinyModel {
            layers: 2,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_size: 16,
            ffn: 172,
            context: 256,
            experts: None,
            dtype: DType::F32,
            output: false,
            seed: 1,
            metadata: Vec::new(),
        }
    }
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Type.
    pub dtype: DType,
    /// Matrices of these rows and columns in a tensor of three dimensions; `None` if it has two.
    pub stack: Option<usize>,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// Values.
    pub values: Vec<f32>,
}

impl Tensor {
    fn bytes(&self) -> Vec<u8> {
        let rows = self.stack.unwrap_or(1) * self.rows;
        let length = self.dtype.matrix_bytes(rows, self.cols).unwrap();
        let mut bytes = vec![0; length];
        block::encode(self.dtype, &self.values, &mut bytes).unwrap();
        bytes
    }

    /// Returns the values as they decode from the file.
    pub fn decoded(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.values.len()];
        block::decode(self.dtype, &self.bytes(), &mut values).unwrap();
        values
    }

    fn dims(&self) -> Vec<u64> {
        match (self.stack, self.rows) {
            (Some(count), rows) => vec![self.cols as u64, rows as u64, count as u64],
            (None, 1) => vec![self.cols as u64],
            (None, rows) => vec![self.cols as u64, rows as u64],
        }
    }
}

impl TinyModel {
    /// Channel of the first position in [`with_missed_sink`](Self::with_missed_sink).
    pub const MISSED_SINK_CHANNEL: usize = 63;

    /// Returns a model with large decompositions.
    #[must_use]
    pub fn large() -> Self {
        TinyModel {
            layers: 4,
            width: 512,
            heads: 8,
            kv_heads: 8,
            head_size: 64,
            ffn: 1024,
            ..TinyModel::default()
        }
    }

    /// Returns a model of 40 layers.
    #[must_use]
    pub fn deep() -> Self {
        TinyModel {
            layers: 40,
            width: 256,
            heads: 8,
            kv_heads: 8,
            head_size: 32,
            ffn: 768,
            ..TinyModel::default()
        }
    }

    /// Returns the tensors of the default model, with a first position along a channel that the
    /// first layer's attention hardly weighs.
    pub fn with_missed_sink() -> Vec<Tensor> {
        let mut tensors = TinyModel::default().tensors();
        for tensor in &mut tensors {
            let cols = tensor.cols;
            match tensor.name.as_str() {
                "token_embd.weight" => {
                    tensor.values[cols..2 * cols].fill(0.0);
                    tensor.values[cols + Self::MISSED_SINK_CHANNEL] = 5.0;
                }
                "blk.0.attn_q.weight" | "blk.0.attn_k.weight" | "blk.0.attn_v.weight" => {
                    for row in tensor.values.chunks_exact_mut(cols) {
                        row[Self::MISSED_SINK_CHANNEL] *= 0.1;
                    }
                }
                _ => {}
            }
        }
        tensors
    }

    /// Sets or (`None`) removes a metadata entry.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Option<Value>>) -> Self {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Returns rows and columns of a projection by its GGUF name.
    pub fn shape(&self, projection: &str) -> (usize, usize) {
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        match projection {
            "attn_q" => (q, self.width),
            "attn_k" | "attn_v" => (kv, self.width),
            "attn_output" => (self.width, q),
            "ffn_gate" | "ffn_up" => (self.ffn, self.width),
            "ffn_down" => (self.width, self.ffn),
            other => panic!("no projection {other}"),
        }
    }

    /// Returns the tensors in the order of the file.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut random = Random::new(self.seed);
        let mut tensors = Vec::new();
        let mut matrix = |name: String, rows: usize, cols: usize, scale: f32, fading: bool| {
            let values = (0..rows * cols)
                .map(|i| {
                    // A spectrum suitable for low rank.
                    let col = (i % cols) as f32 / cols as f32;
                    let fade = if fading {
                        (-4.0 * col).exp() * 2.8
                    } else {
                        1.0
                    };
                    random.normal() * scale * fade
                })
                .collect();
            Tensor {
                name,
                dtype: self.dtype,
                stack: None,
                rows,
                cols,
                values,
            }
        };
        let vocabulary = vocabulary().len();
        tensors.push(matrix(
            "token_embd.weight".into(),
            vocabulary,
            self.width,
            0.25,
            false,
        ));
        let mut norms = Random::new(self.seed ^ 0xff);
        let mut norm = |name: String, cols: usize| Tensor {
            name,
            dtype: DType::F32,
            stack: None,
            rows: 1,
            cols,
            values: (0..cols).map(|_| 1.0 + 0.1 * norms.normal()).collect(),
        };
        for layer in 0..self.layers {
            tensors.push(norm(format!("blk.{layer}.attn_norm.weight"), self.width));
            for projection in GGUF_PROJECTIONS {
                if projection == "ffn_gate" {
                    tensors.push(norm(format!("blk.{layer}.ffn_norm.weight"), self.width));
                }
                if self.experts.is_some() && projection.starts_with("ffn") {
                    continue;
                }
                let (rows, cols) = self.shape(projection);
                let scale = 1.0 / (cols as f32).sqrt();
                tensors.push(matrix(
                    format!("blk.{layer}.{projection}.weight"),
                    rows,
                    cols,
                    scale,
                    true,
                ));
            }
            if let Some(experts) = self.experts {
                for name in ["attn_q_norm", "attn_k_norm"] {
                    tensors.push(norm(format!("blk.{layer}.{name}.weight"), self.head_size));
                }
                let name = |name: &str| format!("blk.{layer}.{name}.weight");
                let (count, ffn, width) = (experts.count, experts.ffn, self.width);
                let router = matrix(name("ffn_gate_inp"), count, width, 0.25, false);
                tensors.push(Tensor {
                    dtype: DType::F32,
                    ..router
                });
                for (projection, rows, cols) in [
                    ("ffn_gate_exps", ffn, width),
                    ("ffn_up_exps", ffn, width),
                    ("ffn_down_exps", width, ffn),
                ] {
                    let scale = 1.0 / (cols as f32).sqrt();
                    let stacked = matrix(name(projection), count * rows, cols, scale, true);
                    tensors.push(Tensor {
                        stack: Some(count),
                        rows,
                        ..stacked
                    });
                }
            }
        }
        tensors.push(norm("output_norm.weight".into(), self.width));
        if self.output {
            tensors.push(matrix(
                "output.weight".into(),
                vocabulary,
                self.width,
                0.25,
                false,
            ));
        }
        tensors
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with_tensors(&self.tensors())
    }

    /// Returns the bytes of the file with other tensors.
    pub fn bytes_with_tensors(&self, tensors: &[Tensor]) -> Vec<u8> {
        file(self.all_metadata(), tensors)
    }

    /// Returns the model split over several files, as `llama-gguf-split` writes them.
    pub fn parts(&self, name: &str, count: usize) -> Vec<(String, Vec<u8>)> {
        let all = self.tensors();
        let part = |number: usize| {
            let own = [
                ("split.no", Value::U16(number as u16)),
                ("split.count", Value::U16(count as u16)),
                ("split.tensors.count", Value::I32(all.len() as i32)),
            ];
            let own = own.map(|(key, value)| (key.to_owned(), value));
            let mut metadata = match number {
                0 => self.all_metadata(),
                _ => Vec::new(),
            };
            metadata.extend(own);
            let tensors = all.iter().skip(number).step_by(count);
            let tensors: Vec<Tensor> = tensors.cloned().collect();
            let name = format!("{name}-{:05}-of-{count:05}.gguf", number + 1);
            (name, file(metadata, &tensors))
        };
        (0..count).map(part).collect()
    }

    /// Returns a file with metadata and vocabulary, but without tensors.
    pub fn vocabulary_only(&self) -> Vec<u8> {
        file(self.all_metadata(), &[])
    }

    fn all_metadata(&self) -> Vec<(String, Value)> {
        let number = |n: usize| Value::U32(u32::try_from(n).unwrap());
        let pieces = vocabulary();
        let scores = (0..pieces.len())
            .map(|id| -(id.saturating_sub(FIRST_PIECE) as f32))
            .collect();
        let kinds = (0..pieces.len() as i32)
            .map(|id| match id {
                0 => 2,
                1 | 2 => 3,
                3..259 => 6,
                _ => 1,
            })
            .collect();
        let text = |text: &str| Value::String(text.to_owned());
        let architecture = match self.experts {
            Some(_) => "qwen3moe",
            None => "llama",
        };
        let mut hyper = vec![
            ("context_length", number(self.context)),
            ("embedding_length", number(self.width)),
            ("block_count", number(self.layers)),
            ("feed_forward_length", number(self.ffn)),
            ("attention.head_count", number(self.heads)),
            ("attention.head_count_kv", number(self.kv_heads)),
            ("attention.key_length", number(self.head_size)),
            ("attention.value_length", number(self.head_size)),
            ("rope.dimension_count", number(self.head_size)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        if let Some(experts) = self.experts {
            hyper.extend([
                ("expert_count", number(experts.count)),
                ("expert_used_count", number(experts.used)),
                ("expert_feed_forward_length", number(experts.ffn)),
            ]);
        }
        let mut entries: Vec<(String, Value)> = [
            ("general.architecture", text(architecture)),
            ("general.name", text("tiny")),
            ("tokenizer.ggml.model", text("llama")),
            ("tokenizer.ggml.tokens", Value::Array(Array::String(pieces))),
            ("tokenizer.ggml.scores", Value::Array(Array::F32(scores))),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
            ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let named = |(key, value)| (format!("{architecture}.{key}"), value);
        entries.splice(2..2, hyper.into_iter().map(named));
        for (key, value) in &self.metadata {
            entries.retain(|(other, _)| other != key);
            entries.extend(value.clone().map(|value| (key.clone(), value)));
        }
        entries
    }
}

fn file(metadata: Vec<(String, Value)>, tensors: &[Tensor]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors.iter().map(Tensor::bytes).collect();
    let mut writer = Writer::new();
    for (key, value) in metadata {
        writer.metadata(key, value);
    }
    for (tensor, data) in tensors.iter().zip(&data) {
        writer.tensor(&tensor.name, ggml_type(tensor.dtype), &tensor.dims(), data);
    }
    writer.to_bytes().unwrap()
}

/// GGUF names of the projections, in the order of execution.
pub const GGUF_PROJECTIONS: [&str; 7] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];

/// Command line names of the projections, in the same order.
pub const PROJECTION_NAMES: [&str; 7] = ["q", "k", "v", "o", "gate", "up", "down"];

/// Id of the first piece that is neither special nor a byte.
pub const FIRST_PIECE: usize = 259;

const PIECES: [&str; 40] = [
    "▁t", "he", "▁a", "in", "▁s", "▁the", "an", "at", "▁h", "nd", "▁and", "en", "▁c", "▁cat",
    "▁sat", "on", "▁r", "ed", "▁then", "▁hat", "▁", "e", "t", "a", "o", "i", "n", "s", "r", "h",
    "d", "l", "u", "c", "m", "g", "p", "w", ".", "\n",
];

/// Returns the text of every token, by id: three special ones, 256 bytes, pieces.
pub fn vocabulary() -> Vec<String> {
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = PIECES.map(str::to_owned);
    special.into_iter().chain(bytes).chain(pieces).collect()
}

/// Returns the id of a piece.
pub fn token(piece: &str) -> u32 {
    let id = vocabulary().iter().position(|other| other == piece);
    u32::try_from(id.unwrap()).unwrap()
}

/// Returns the ggml type of a data type.
pub fn ggml_type(dtype: DType) -> GgmlType {
    GgmlType::ALL
        .iter()
        .copied()
        .find(|ggml| ggml.dtype() == Some(dtype))
        .unwrap()
}
