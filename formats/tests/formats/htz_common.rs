//! Small artifacts for the tests of the format.
mod banded;
mod forge;
mod kv;
mod planes;
mod records;
mod sealed;

use std::path::Path;

use htc_formats::DType;
use htc_formats::folder::Folder;
use htc_formats::htz::{
    BasisRecord, Budget, DepthSinkRecord, Digest, Form, GeometryRecord, HtzError, HtzWriter,
    Manifest, MatrixRecord, Measurement, PlanRecord, Provenance, QualityRecord, Section,
    SpectrumRecord, TensorEntry, TreatmentRecord,
};
use htc_formats::model::{
    Activation, Experts, Forward, HyperParameters, LongRope, MatrixId, Part, ProjectionKind, Role,
    RopePairs, SlidingWindow,
};
use htc_formats::vocab::{TokenKind, Vocabulary};

pub use banded::{banded, bands, classed, padded, rotated, tabled};
pub(crate) use forge::refuses;
pub use forge::{
    data_offset, forged, json, put_manifest, refused, refused_in, reseal, reseal_header,
};
pub use kv::{based, with_kv_bases};
pub use planes::{planes_behind_kv_bases, refined};
pub use records::{allocated, kernels, treated, with_kernels, with_tokenizer_rules};
pub use sealed::{sealed, with_source};

#[derive(Clone, Copy, Debug)]
pub enum Choice {
    Dense(DType),
    LowRank(DType, usize),
    Shared(DType),
    Residual(DType, usize),
}

#[derive(Clone, Debug)]
pub struct Model {
    pub manifest: Manifest,
    pub data: Vec<(Role, Vec<u8>)>,
    pub source: Vec<(Role, Vec<u8>)>,
    pub vocabulary: Vocabulary,
    pub kernels: Option<htc_formats::htz::KernelCode>,
}

/// Width 32, two query heads, one KV head, hidden width 64, 12 tokens.
pub fn hyper(layers: usize) -> HyperParameters {
    HyperParameters {
        architecture: "llama".to_owned(),
        name: Some("tiny".to_owned()),
        vocabulary: 12,
        context: 64,
        width: 32,
        layers,
        heads: 2,
        kv_heads: 1,
        head_size: 16,
        ffn: 64,
        norm_epsilon: 1e-5,
        rope_theta: 10000.0,
        rope_dimensions: 16,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    }
}

pub fn vocabulary(tokens: usize) -> Vocabulary {
    let text = |id: usize| match id {
        0 => "<unk>".to_owned(),
        1 => "<s>".to_owned(),
        2 => "</s>".to_owned(),
        _ => format!("\u{2581}token\u{2581}{id}"),
    };
    Vocabulary {
        model: "llama".to_owned(),
        tokens: (0..tokens).map(text).collect(),
        scores: (0..tokens).map(|id| -0.1 * id as f32).collect(),
        kinds: (0..tokens)
            .map(|id| match id {
                0 => TokenKind::Unknown,
                1 | 2 => TokenKind::Control,
                _ => TokenKind::Normal,
            })
            .collect(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
        ..Vocabulary::default()
    }
}

/// Returns deterministic numbers in (-1, 1) in the given type, from a linear congruential generator
/// and exact arithmetic.
pub fn numbers(dtype: DType, bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    let mut out = Vec::with_capacity(bytes + 256);
    while out.len() < bytes {
        match dtype {
            DType::F32 => {
                let value = (next() >> 8) as f32 / 8388608.0 - 1.0;
                out.extend_from_slice(&value.to_le_bytes());
            }
            // 0x2c00 is 1/16, 0x3b80 is 1/256.
            DType::F16 => out.extend_from_slice(&((next() as u16 & 0x83ff) | 0x2c00).to_le_bytes()),
            DType::BF16 => {
                out.extend_from_slice(&((next() as u16 & 0x807f) | 0x3b80).to_le_bytes());
            }
            DType::Q8_0 => {
                out.extend_from_slice(&0x1400_u16.to_le_bytes());
                out.extend((0..32).map(|_| next() as u8));
            }
            _ => out.extend((0..dtype.block_bytes()).map(|_| next() as u8)),
        }
    }
    assert_eq!(out.len(), bytes, "whole blocks");
    out
}

pub fn model(
    hyper: HyperParameters,
    rope_factors: bool,
    output: Option<DType>,
    basis: (DType, usize),
    mut choose: impl FnMut(usize, ProjectionKind) -> Choice,
) -> Model {
    let mut tensors = vec![TensorEntry::new(
        "token_embd.weight",
        Role::TokenEmbedding,
        DType::F16,
        hyper.vocabulary,
        hyper.width,
    )];
    let vector = |name: String, role, cols| TensorEntry::new(name, role, DType::F32, 1, cols);
    if rope_factors {
        let cols = hyper.rope_dimensions / 2;
        tensors.push(vector(
            "rope_freqs.weight".to_owned(),
            Role::RopeFactors,
            cols,
        ));
    }
    let (mut projections, mut bases) = (Vec::new(), Vec::new());
    for layer in 0..hyper.layers {
        let mut groups = vec![
            vec![ProjectionKind::Q, ProjectionKind::K, ProjectionKind::V],
            vec![ProjectionKind::O],
        ];
        match hyper.forward.experts {
            None => groups.extend([
                vec![ProjectionKind::Gate, ProjectionKind::Up],
                vec![ProjectionKind::Down],
            ]),
            Some(experts) => {
                let of_expert = |expert| {
                    [
                        ProjectionKind::ExpertGate(expert),
                        ProjectionKind::ExpertUp(expert),
                        ProjectionKind::ExpertDown(expert),
                    ]
                };
                let experts = (0..experts.count as u16).flat_map(of_expert);
                groups.push(
                    [ProjectionKind::Router]
                        .into_iter()
                        .chain(experts)
                        .collect(),
                );
            }
        }
        for (index, group) in groups.into_iter().enumerate() {
            if index == 0 {
                let name = format!("blk.{layer}.attn_norm.weight");
                tensors.push(vector(name, Role::AttentionNorm { layer }, hyper.width));
            }
            if index == 2 {
                let name = format!("blk.{layer}.ffn_norm.weight");
                tensors.push(vector(name, Role::FfnNorm { layer }, hyper.width));
            }
            let choices: Vec<Choice> = group
                .iter()
                .map(|&projection| choose(layer, projection))
                .collect();
            if choices.iter().any(|c| matches!(c, Choice::Shared(_))) {
                let group = group[0]
                    .group()
                    .expect("projections that share have a group");
                let (dtype, rank) = basis;
                let role = Role::Basis { layer, group };
                let name = format!("blk.{layer}.{}", group.name());
                let entry = TensorEntry::new(name, role, dtype, rank, hyper.width);
                bases.push(BasisRecord {
                    layer,
                    group,
                    rank,
                    parameters: entry.parameters(),
                    bytes: entry.stored_bytes().expect("whole blocks"),
                });
                tensors.push(entry);
            }
            for (&projection, choice) in group.iter().zip(choices) {
                let (rows, cols) = hyper.projection_shape(projection);
                let name = format!("blk.{layer}.{projection}.weight");
                let entry = |part, dtype, rows, cols| {
                    let role = Role::Linear {
                        layer,
                        projection,
                        part,
                    };
                    TensorEntry::new(name.clone(), role, dtype, rows, cols)
                };
                let (form, rank, stored) = match choice {
                    Choice::Dense(dtype) => (
                        Form::Dense,
                        None,
                        vec![entry(Part::Weight, dtype, rows, cols)],
                    ),
                    Choice::LowRank(dtype, rank) => (
                        Form::LowRank,
                        Some(rank),
                        vec![
                            entry(Part::A, dtype, rank, cols),
                            entry(Part::B, dtype, rows, rank),
                        ],
                    ),
                    Choice::Shared(dtype) => (
                        Form::SharedBasis,
                        Some(basis.1),
                        vec![entry(Part::Projected, dtype, rows, basis.1)],
                    ),
                    Choice::Residual(base, rank) => (
                        Form::Residual,
                        Some(rank),
                        vec![
                            entry(Part::Weight, base, rows, cols),
                            entry(Part::ResidualA, DType::F16, rank, cols),
                            entry(Part::ResidualB, DType::F16, rows, rank),
                        ],
                    ),
                };
                projections.push(MatrixRecord {
                    id: MatrixId::Projection { layer, projection },
                    form,
                    rank,
                    rows: rows as u64,
                    cols: cols as u64,
                    parameters_before: (rows * cols) as u64,
                    parameters_after: stored.iter().map(TensorEntry::parameters).sum(),
                    bytes_before: (rows * cols * 4) as u64,
                    bytes_after: stored.iter().filter_map(TensorEntry::stored_bytes).sum(),
                    error: None,
                    note: (form == Form::Dense).then(|| "the test wants it so".to_owned()),
                });
                tensors.extend(stored);
            }
        }
    }
    let name = "output_norm.weight".to_owned();
    tensors.push(vector(name, Role::OutputNorm, hyper.width));
    if let Some(dtype) = output {
        tensors.push(TensorEntry::new(
            "output.weight",
            Role::Output,
            dtype,
            hyper.vocabulary,
            hyper.width,
        ));
    }
    let data = tensors
        .iter()
        .enumerate()
        .map(|(seed, entry)| {
            let bytes = entry.stored_bytes().expect("whole blocks") as usize;
            (entry.role, numbers(entry.dtype, bytes, seed as u64))
        })
        .collect();
    let vocabulary = vocabulary(hyper.vocabulary);
    let manifest = Manifest {
        requires: Manifest::required_features(&hyper, &tensors),
        hyper,
        tensors,
        sections: Vec::new(),
        plan: PlanRecord {
            method: "gp".to_owned(),
            budget: Budget::Ratio(0.5),
            factor_type: DType::F16,
            projections,
            bases,
            matrices: Vec::new(),
            allocation: None,
        },
        provenance: Provenance {
            program: "htc".to_owned(),
            version: "0.1.0".to_owned(),
            source_sha256: Digest::of_bytes(b"the source"),
            source_bytes: 10,
            source_format: "gguf v3".to_owned(),
            instruction_set: "x86_64 avx2".to_owned(),
            linear_algebra: "faer".to_owned(),
            calibration: None,
            treatment: None,
            order: None,
            tuning: None,
        },
        geometry: None,
        dial: Vec::new(),
        source: None,
        quality: None,
    };
    Model {
        manifest,
        data,
        source: Vec::new(),
        vocabulary,
        kernels: None,
    }
}

/// One layer with every form and most types.
pub fn mixed() -> Model {
    let choose = |_, projection| match projection {
        ProjectionKind::Q | ProjectionKind::V => Choice::Shared(DType::F16),
        ProjectionKind::K => Choice::Dense(DType::Q8_0),
        ProjectionKind::O => Choice::LowRank(DType::BF16, 5),
        ProjectionKind::Gate => Choice::Dense(DType::Q4_0),
        ProjectionKind::Up => Choice::LowRank(DType::Q8_0, 32),
        _ => Choice::LowRank(DType::F16, 3),
    };
    model(hyper(1), true, Some(DType::Q8_0), (DType::F32, 6), choose)
}

/// Returns two layers with three experts each.
pub fn with_experts() -> Model {
    let choose = |_, projection| match projection {
        ProjectionKind::ExpertUp(1) => Choice::LowRank(DType::F16, 3),
        ProjectionKind::ExpertDown(_) => Choice::Dense(DType::Q8_0),
        _ => Choice::Dense(DType::F16),
    };
    let experts = Experts {
        count: 3,
        used: 2,
        ffn: 32,
        normalised: true,
    };
    let hyper = HyperParameters {
        forward: Forward {
            experts: Some(experts),
            ..Forward::default()
        },
        ..hyper(2)
    };
    model(hyper, false, None, (DType::F32, 6), choose)
}

/// Returns the small model with all additions of format 1.1.
pub fn varied() -> Model {
    let choose = |_, projection| match projection {
        ProjectionKind::Q => Choice::Shared(DType::F16),
        ProjectionKind::Gate => Choice::Dense(DType::IQ4NL),
        ProjectionKind::Down => Choice::LowRank(DType::F16, 3),
        _ => Choice::Dense(DType::Q5_1),
    };
    let forward = Forward {
        rope_pairs: RopePairs::Halves,
        activation: Activation::GeluTanh,
        embedding_scale: Some(5.5),
        attention_scale: Some(0.125),
        attention_softcap: Some(50.0),
        logit_softcap: Some(30.0),
        sliding_window: Some(SlidingWindow {
            positions: 7,
            full_layers: vec![0],
            rope_theta: Some(1e6),
        }),
        long_rope: Some(LongRope {
            original_context: 32,
            attention_factor: 1.25,
        }),
        experts: None,
    };
    let hyper = HyperParameters {
        forward,
        ..hyper(1)
    };
    let mut model = model(hyper, true, None, (DType::F32, 6), choose);
    let layer = 0;
    let bias = |projection| Role::Linear {
        layer,
        projection,
        part: Part::Bias,
    };
    let more = [
        (Role::LongRopeFactors, 8),
        (bias(ProjectionKind::Q), 32),
        (bias(ProjectionKind::K), 16),
        (bias(ProjectionKind::Down), 32),
        (Role::QueryNorm { layer }, 16),
        (Role::KeyNorm { layer }, 16),
        (Role::PostAttentionNorm { layer }, 32),
        (Role::PostFfnNorm { layer }, 32),
    ];
    for (seed, (role, cols)) in more.into_iter().enumerate() {
        let entry = TensorEntry::new(role.to_string(), role, DType::F32, 1, cols);
        let bytes = numbers(DType::F32, 4 * cols, 100 + seed as u64);
        model.manifest.tensors.push(entry);
        model.data.push((role, bytes));
    }
    let manifest = &mut model.manifest;
    let by_execution = |a: &Role, b: &Role| a.execution_order().cmp(&b.execution_order());
    manifest
        .tensors
        .sort_by(|a, b| by_execution(&a.role, &b.role));
    model.data.sort_by(|(a, _), (b, _)| by_execution(a, b));
    manifest.requires = Manifest::required_features(&manifest.hyper, &manifest.tensors);
    model
}

/// Format 1.4: bases with residuals, an embedding of another type, and a factorised head.
pub fn formed() -> Model {
    let choose = |_, projection| match projection {
        ProjectionKind::Q => Choice::Shared(DType::F16),
        ProjectionKind::O => Choice::Residual(DType::Q4_0, 3),
        ProjectionKind::Down => Choice::Residual(DType::Q8_0, 5),
        _ => Choice::Dense(DType::Q8_0),
    };
    let mut model = model(hyper(1), false, None, (DType::F32, 6), choose);
    let head = |part, rows, cols| {
        let role = Role::OutputFactor { part };
        TensorEntry::new("output", role, DType::F16, rows, cols)
    };
    let bias = Role::Linear {
        layer: 0,
        projection: ProjectionKind::Down,
        part: Part::Bias,
    };
    let more = [
        TensorEntry::new("bias", bias, DType::F32, 1, 32),
        head(Part::A, 4, 32),
        head(Part::B, 12, 4),
    ];
    for (seed, entry) in more.into_iter().enumerate() {
        let bytes = entry.stored_bytes().expect("whole blocks") as usize;
        let bytes = numbers(entry.dtype, bytes, 200 + seed as u64);
        model.data.push((entry.role, bytes));
        model.manifest.tensors.push(entry);
    }
    let by_execution = |a: &Role, b: &Role| a.execution_order().cmp(&b.execution_order());
    let manifest = &mut model.manifest;
    manifest
        .tensors
        .sort_by(|a, b| by_execution(&a.role, &b.role));
    model.data.sort_by(|(a, _), (b, _)| by_execution(a, b));
    let record = |id, form, rank, parameters_after, bytes_after| MatrixRecord {
        id,
        form,
        rank,
        rows: 12,
        cols: 32,
        parameters_before: 12 * 32,
        parameters_after,
        bytes_before: 12 * 32 * 4,
        bytes_after,
        error: Some(0.0625),
        note: None,
    };
    manifest.plan.matrices = vec![
        record(MatrixId::Embedding, Form::Dense, None, 12 * 32, 12 * 32 * 2),
        record(MatrixId::Head, Form::LowRank, Some(4), 4 * 44, 8 * 44),
    ];
    manifest.requires = Manifest::required_features(&manifest.hyper, &manifest.tensors);
    model
}

pub fn probed() -> Model {
    let mut model = mixed();
    let projections = &model.manifest.plan.projections;
    let spectra = projections
        .iter()
        .enumerate()
        .map(|(index, projection)| SpectrumRecord {
            id: projection.id,
            components: projection.rank.map_or(projection.rows, |rank| rank as u64),
            largest: 1.5 + index as f64 / 3.0,
            energy: 7.25 * index as f64,
        });
    model.manifest.geometry = Some(GeometryRecord {
        depth_sink: DepthSinkRecord::from_depth(1),
        spectra: spectra.collect(),
    });
    model
}

/// Format 1.5: a shrinkage and a quality.
pub fn measured() -> Model {
    let mut model = probed();
    model.manifest.provenance.treatment = Some(TreatmentRecord {
        gauge: "whiten".to_owned(),
        sink: Some("append".to_owned()),
        bias: false,
        shrinkage: Some(0.03),
    });
    model.manifest.quality = Some(quality());
    model
}

pub fn quality() -> QualityRecord {
    QualityRecord {
        text_sha256: Digest::of_bytes(b"a text"),
        tokens_sha256: Digest::of_bytes(b"its tokens"),
        protocol: QualityRecord::SECOND_HALF.to_owned(),
        context: 64,
        windows: 8,
        tokens: 8 * 31,
        choosing_windows: 7,
        kl: Measurement {
            value: 0.0625,
            stderr: Some(0.03125),
            interval: Some((-0.0078125, 0.1328125)),
        },
        perplexity_ratio: Measurement {
            value: 1.125,
            stderr: Some(0.015625),
            interval: Some((1.0, 1.25)),
        },
    }
}

pub fn fill_in(plan: &mut PlanRecord) {
    for (index, projection) in plan.projections.iter_mut().enumerate() {
        projection.error = Some(index as f64 / 16.0);
    }
}

impl Model {
    pub fn write(&self, path: &Path, extra: &[Section]) -> Result<(), HtzError> {
        let mut sections = vec![Section::tokenizer(&self.vocabulary)?];
        if let Some(kernels) = &self.kernels {
            sections.push(Section::kernels(kernels)?);
        }
        sections.extend_from_slice(extra);
        let mut writer = HtzWriter::create(path, self.manifest.clone(), sections, false)?;
        for (role, bytes) in &self.data {
            writer.write_tensor(*role, bytes)?;
        }
        for (role, bytes) in &self.source {
            writer.write_source(*role, bytes)?;
        }
        writer.finish(fill_in)?;
        let (folder, name) = Folder::parent_of(path).expect("the artifact was written");
        if let Some(quality) = &self.manifest.quality {
            HtzWriter::write_quality(&folder, &name, Some(quality.clone()))?;
        }
        match &self.manifest.dial[..] {
            [] => Ok(()),
            dial => HtzWriter::write_active_fractions(&folder, &name, dial.to_vec()),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&[])
    }

    pub fn bytes_with(&self, extra: &[Section]) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let path = folder.path().join("model.htz");
        self.write(&path, extra).expect("the model is valid");
        std::fs::read(&path).expect("the model was written")
    }
}
