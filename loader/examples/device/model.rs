//! Models with random weights, in memory or as a file.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use htc_formats::bands::{CodeKind, CodeLayout, ColumnGroupMatrix, ColumnGroups};
use htc_formats::gguf::{Array, GgmlType, Value, Writer};
use htc_formats::model::{InputGroup, MatrixId, Part, ProjectionKind, Role, StoredTensor};
use htc_formats::source::{Container, ModelFile, ModelTensor, Place};
use htc_formats::vocab::VocabularyError;
use htc_formats::{DType, block};

use super::shape::{Shape, StorageForm};

/// Number of distinct encoded rows, repeated for larger matrices. The cost of a product does not
/// depend on the values.
const ROWS: usize = 64;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Approximately standard normal: the centred sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        let words = [self.bits(), self.bits(), self.bits()];
        let parts = words
            .iter()
            .flat_map(|w| (0..4).map(move |i| (w >> (16 * i)) & 0xffff));
        ((parts.sum::<u64>() as f64 + 6.0) / 65536.0 - 6.0) as f32
    }

    pub fn token(&mut self, vocabulary: usize) -> u32 {
        (self.bits() % vocabulary as u64) as u32
    }
}

/// Generates matrices with standard deviation 1/√columns, so that activations keep their magnitude.
pub struct MatrixGenerator {
    random: Random,
    made: HashMap<(DType, String, usize, usize), Arc<[u8]>>,
    /// Gives each matrix separate data; otherwise weights in host memory that several matrices
    /// share would stay in cache.
    separate_data: bool,
}

impl MatrixGenerator {
    pub fn new(own: bool) -> Self {
        let (random, made) = (Random(1), HashMap::new());
        MatrixGenerator {
            random,
            made,
            separate_data: own,
        }
    }

    /// Returns the bytes of a matrix.
    ///
    /// # Errors
    /// Rows that are no multiple of the block length.
    pub fn bytes(
        &mut self,
        dtype: DType,
        codes: Option<&CodeLayout>,
        [rows, cols]: [usize; 2],
    ) -> Result<Arc<[u8]>, Box<dyn Error>> {
        let name = codes.map(ToString::to_string).unwrap_or_default();
        let key = (dtype, name, rows, cols);
        if let Some(made) = self.made.get(&key) {
            return Ok(if self.separate_data {
                Arc::from(&made[..])
            } else {
                Arc::clone(made)
            });
        }
        let bytes: Arc<[u8]> = match codes {
            Some(codes) => self.bands(codes, rows)?.into(),
            None => self.blocks(dtype, rows, cols)?.into(),
        };
        self.made.insert(key, Arc::clone(&bytes));
        Ok(bytes)
    }

    fn blocks(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<u8>, Box<dyn Error>> {
        let length = dtype.matrix_bytes(rows, cols).ok_or_else(|| {
            let block = dtype.block_len();
            format!("rows of {cols} numbers are no whole blocks of {dtype}, of {block} each")
        })?;
        let distinct = rows.min(ROWS);
        let scale = (cols as f32).sqrt().recip();
        let numbers: Vec<f32> = (0..distinct * cols)
            .map(|_| scale * self.random.normal())
            .collect();
        let mut once = vec![0; length / rows * distinct];
        block::encode(dtype, &numbers, &mut once)?;
        let mut all = once.repeat(rows.div_ceil(distinct));
        all.truncate(length);
        Ok(all)
    }

    fn bands(&mut self, codes: &CodeLayout, rows: usize) -> Result<Vec<u8>, Box<dyn Error>> {
        let length = usize::try_from(codes.bytes(rows))?;
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.random.bits().to_le_bytes());
        }
        bytes.truncate(length);
        // Any bits are valid codes, but not valid scales: uses 2^-10 for rows and 1 for columns,
        // then corrects the row scales.
        set_scales(codes, rows, &mut bytes, [1.0 / 1024.0, 1.0])?;
        let mut row = vec![0.0; codes.cols()];
        let bands = codes.view(rows, &bytes)?;
        bands.decode_row(0, &mut row)?;
        let square = row.iter().map(|x| x * x).sum::<f32>();
        set_scales(codes, rows, &mut bytes, [1.0 / 1024.0 / square.sqrt(), 1.0])?;
        codes.view(rows, &bytes)?.check()?;
        Ok(bytes)
    }
}

fn set_scales(
    codes: &CodeLayout,
    rows: usize,
    bytes: &mut [u8],
    [of_row, of_column]: [f32; 2],
) -> Result<(), Box<dyn Error>> {
    let half = |scale: f32| {
        let mut bytes = [0; 2];
        block::encode(DType::F16, &[scale], &mut bytes).map(|()| bytes)
    };
    let (of_row, of_column) = (half(of_row)?, half(of_column)?);
    let places = match codes.view(rows, bytes)? {
        ColumnGroupMatrix::Uniform(bands) => scale_ranges(&bands),
        ColumnGroupMatrix::Classes(_) => return Err("classes of rows are not made here".into()),
    };
    for (is_row, place) in places {
        for scale in bytes[place].chunks_exact_mut(2) {
            scale.copy_from_slice(if is_row { &of_row } else { &of_column });
        }
    }
    Ok(())
}

fn scale_ranges(bands: &ColumnGroups<'_>) -> Vec<(bool, std::ops::Range<usize>)> {
    let base = bands.bytes().as_ptr() as usize;
    let place = |part: &[u8]| {
        let start = part.as_ptr() as usize - base;
        start..start + part.len()
    };
    let mut found = Vec::new();
    for kind in CodeKind::ALL {
        let part = bands.row_scale_bytes(kind);
        if !part.is_empty() {
            found.push((true, place(part)));
        }
    }
    for (band, code) in bands.codes().iter().enumerate() {
        if code.kind() == CodeKind::Trellis {
            found.push((false, place(bands.column_scale_bytes(band))));
        }
    }
    found
}

fn model_tensors(shape: &Shape, form: StorageForm) -> Result<Vec<StoredTensor>, Box<dyn Error>> {
    let hyper = shape.hyper(1);
    let vector = |role| StoredTensor {
        role,
        dtype: DType::F32,
        rows: 1,
        cols: shape.width,
        codes: None,
    };
    let mut all = vec![StoredTensor {
        role: Role::TokenEmbedding,
        dtype: form.embedding_type(),
        rows: shape.vocabulary,
        ..vector(Role::TokenEmbedding)
    }];
    for layer in 0..shape.layers {
        all.push(vector(Role::AttentionNorm { layer }));
        all.push(vector(Role::FfnNorm { layer }));
        for projection in ProjectionKind::ALL {
            let (rows, cols) = hyper.projection_shape(projection);
            let kept = form.projection_tensors(projection, rows, cols)?;
            let matrix = MatrixId::Projection { layer, projection };
            let tensors = kept.tensors(matrix, (rows, cols));
            if matches!(form, StorageForm::BaseAndResidual(_)) {
                let role = Role::Refinement { matrix };
                all.extend(tensors.iter().cloned().map(|t| StoredTensor { role, ..t }));
            }
            all.extend(tensors);
            let first = |group: &InputGroup| group.projections().first() == Some(&projection);
            if let Some(group) = projection.group().filter(first) {
                all.extend(kept.basis(layer, group, cols));
            }
        }
    }
    all.push(vector(Role::OutputNorm));
    if !shape.tied {
        all.push(StoredTensor {
            role: Role::Output,
            ..all[0].clone()
        });
    }
    all.sort_by_key(|tensor| tensor.role.execution_order());
    Ok(all)
}

/// Returns an in-memory model with random weights.
///
/// # Errors
/// A shape with rows that are no multiple of the block length.
pub fn random_model(
    shape: &Shape,
    form: StorageForm,
    context: usize,
    maker: &mut MatrixGenerator,
) -> Result<ModelFile, Box<dyn Error>> {
    let hyper = shape.hyper(context);
    hyper.check()?;
    let mut tensors = Vec::new();
    for tensor in model_tensors(shape, form)? {
        let StoredTensor {
            role,
            dtype,
            rows,
            cols,
            codes,
        } = tensor;
        let bytes = match role {
            _ if rows == 1 => 1.0_f32.to_le_bytes().repeat(cols).into(),
            _ => maker.bytes(dtype, codes.as_ref(), [rows, cols])?,
        };
        tensors.push(ModelTensor {
            name: role.to_string(),
            role,
            dtype,
            rows,
            cols,
            codes,
            place: Place::Computed(bytes),
        });
    }
    Ok(ModelFile {
        path: format!("random {}", shape.name).into(),
        files: Vec::new(),
        container: Container::Gguf { version: 3 },
        hyper,
        vocabulary: Err(VocabularyError::Absent),
        tensors,
    })
}

/// Returns the number of parameters of all projections, half the operations per token of a long
/// prefill.
pub fn projection_parameters(file: &ModelFile) -> u64 {
    let of_projection = |role: Role| {
        matches!(role, Role::Linear { part, .. } if part != Part::Bias)
            || matches!(role, Role::Basis { .. } | Role::Refinement { .. })
    };
    let projections = file
        .tensors
        .iter()
        .filter(|tensor| of_projection(tensor.role));
    projections
        .map(|tensor| tensor.rows as u64 * tensor.cols as u64)
        .sum()
}

/// Returns the name of a tensor of a dense model.
fn gguf_name(role: Role) -> Option<String> {
    match role {
        Role::TokenEmbedding
        | Role::Output
        | Role::Linear {
            part: Part::Weight, ..
        } => Some(role.to_string()),
        Role::OutputNorm | Role::AttentionNorm { .. } | Role::FfnNorm { .. } => {
            Some(format!("{role}.weight"))
        }
        _ => None,
    }
}

/// Writes a dense model as GGUF with a byte vocabulary.
///
/// # Errors
/// A tensor without a GGUF name, or an I/O error.
pub fn write_gguf(file: &ModelFile, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut writer = Writer::new();
    for (key, value) in metadata(file)? {
        writer.metadata(key, value);
    }
    for tensor in &file.tensors {
        let no_place = || {
            format!(
                "a GGUF has no {}: only forms dense:TYPE are written",
                tensor.role
            )
        };
        let name = gguf_name(tensor.role).ok_or_else(no_place)?;
        let kind = GgmlType::ALL
            .iter()
            .find(|kind| kind.dtype() == Some(tensor.dtype));
        let kind = *kind.ok_or_else(no_place)?;
        let (rows, cols) = (tensor.rows as u64, tensor.cols as u64);
        match rows {
            1 => writer.deferred_tensor(name, kind, &[cols]),
            _ => writer.deferred_tensor(name, kind, &[cols, rows]),
        };
    }
    let mut out = BufWriter::with_capacity(1 << 22, std::fs::File::create(path)?);
    let fill = |index: usize, out: &mut dyn Write| {
        out.write_all(file.bytes(&file.tensors[index]))?;
        Ok(())
    };
    writer.write_with::<Box<dyn Error>>(&mut out, |error| error.into(), fill)?;
    out.flush()?;
    Ok(())
}

fn metadata(file: &ModelFile) -> Result<Vec<(String, Value)>, Box<dyn Error>> {
    let h = &file.hyper;
    let mut all: Vec<(String, Value)> = vec![
        ("general.architecture".into(), Value::String("llama".into())),
        (
            "general.name".into(),
            Value::String(h.name.clone().unwrap_or_default()),
        ),
        ("llama.rope.freq_base".into(), Value::F32(h.rope_theta)),
        (
            "llama.attention.layer_norm_rms_epsilon".into(),
            Value::F32(h.norm_epsilon),
        ),
    ];
    for (key, number) in [
        ("llama.block_count", h.layers),
        ("llama.context_length", h.context),
        ("llama.embedding_length", h.width),
        ("llama.feed_forward_length", h.ffn),
        ("llama.attention.head_count", h.heads),
        ("llama.attention.head_count_kv", h.kv_heads),
        ("llama.attention.key_length", h.head_size),
        ("llama.attention.value_length", h.head_size),
        ("llama.rope.dimension_count", h.rope_dimensions),
        ("llama.vocab_size", h.vocabulary),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
    ] {
        all.push((key.to_owned(), Value::U32(u32::try_from(number)?)));
    }
    // Three special tokens and one per byte, so that any text can be tokenised; the rest are
    // unused.
    let token = |id: usize| match id {
        0 => ("<unk>".to_owned(), 2),
        1 => ("<s>".to_owned(), 3),
        2 => ("</s>".to_owned(), 3),
        3..259 => (format!("<0x{:02X}>", id - 3), 6),
        _ => (format!("<unused:{id}>"), 5),
    };
    let (tokens, kinds): (Vec<String>, Vec<i32>) = (0..h.vocabulary).map(token).unzip();
    let scores = (0..h.vocabulary).map(|id| -(id as f32)).collect();
    all.extend([
        ("tokenizer.ggml.model".into(), Value::String("llama".into())),
        (
            "tokenizer.ggml.tokens".into(),
            Value::Array(Array::String(tokens)),
        ),
        (
            "tokenizer.ggml.scores".into(),
            Value::Array(Array::F32(scores)),
        ),
        (
            "tokenizer.ggml.token_type".into(),
            Value::Array(Array::I32(kinds)),
        ),
    ]);
    Ok(all)
}

#[cfg(test)]
mod tests;
