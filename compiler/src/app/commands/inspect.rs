//! `htc inspect`.

mod gguf;

use std::collections::BTreeMap;
use std::path::Path;

use htc_formats::DType;
use htc_formats::bands::CodeLayout;
use htc_formats::block;
use htc_formats::escape::escape;
use htc_formats::htz::{Form, Htz, Manifest, PlanRecord, QualityRecord, TensorEntry};
use htc_formats::metadata::SourceMetadata;
use htc_formats::model::{HyperParameters, KvSide, Role};
use htc_formats::source::ModelFile;
use schemars::JsonSchema;
use serde::Serialize;

use gguf::GgufJson;

use super::{Failure, Opened, open_container, print_json};
use crate::app::cli::{Document, FileArgs};
use crate::app::terminal::{display_path, shorten_message};
use crate::report::{active_fraction_table, notes};
use crate::system::show::{bits_per_weight, format_bytes, format_count, format_interval};

const MAX_TEXT_CHARS: usize = 120;

pub(super) fn execute(args: &FileArgs) -> Result<(), Failure> {
    match (open_container(&args.file)?, args.json) {
        (Opened::Gguf(gguf), true) => print_json(
            Document::Inspection,
            &Inspection::Gguf(gguf::gguf_json(&gguf)),
        ),
        (Opened::Gguf(gguf), false) => {
            gguf::show_gguf(&args.file, &gguf)?;
            Ok(())
        }
        (Opened::Htz(artifact), true) => print_json(Document::Inspection, &htz_json(&artifact)?),
        (Opened::Htz(artifact), false) => {
            show_htz(&args.file, &artifact)?;
            Ok(())
        }
        (Opened::Folder(_), json) => {
            let model = ModelFile::open_folder(&args.file)?;
            if json {
                return print_json(Document::Inspection, &folder_json(&model));
            }
            show_folder(&model)?;
            Ok(())
        }
    }
}

/// Contents of a model file or folder, as JSON.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(super) enum Inspection<'a> {
    Artifact(Box<ArtifactJson<'a>>),
    Gguf(GgufJson<'a>),
    Folder(FolderJson<'a>),
}

fn shorten(text: &str) -> String {
    let end = text.char_indices().nth(MAX_TEXT_CHARS).map(|(end, _)| end);
    let mut shown = escape(&text[..end.unwrap_or(text.len())]).into_owned();
    if end.is_some() {
        shown.push('…');
    }
    shown
}

/// Contents of an artifact: those of its manifest, and these.
#[derive(JsonSchema, Serialize)]
pub(super) struct ArtifactJson<'a> {
    /// `htz`.
    format: &'static str,
    version: String,
    bytes: usize,
    /// Bytes of the source's weights, if they are included.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_bytes: Option<u64>,
    bits_per_weight: f64,
    /// What the source states of itself: `licence`, `author`, `base_model`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    source_metadata: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

/// Contents of a folder with `config.json` and `.safetensors`.
#[derive(JsonSchema, Serialize)]
pub(super) struct FolderJson<'a> {
    bytes: u64,
    /// File names.
    files: Vec<Option<String>>,
    /// `safetensors`.
    format: &'static str,
    hyper: &'a HyperParameters,
    tensors: Vec<FolderTensorJson<'a>>,
}

#[derive(JsonSchema, Serialize)]
struct FolderTensorJson<'a> {
    bytes: usize,
    cols: usize,
    name: &'a str,
    role: Role,
    rows: usize,
    r#type: DType,
}

fn folder_json(model: &ModelFile) -> Inspection<'_> {
    let file_name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let tensors = model.tensors.iter().map(|t| FolderTensorJson {
        bytes: t.place.len(),
        cols: t.cols,
        name: &t.name,
        role: t.role,
        rows: t.rows,
        r#type: t.dtype,
    });
    Inspection::Folder(FolderJson {
        bytes: model.size(),
        files: model.files.iter().map(|f| file_name(f.path())).collect(),
        format: "safetensors",
        hyper: &model.hyper,
        tensors: tensors.collect(),
    })
}

fn show_folder(model: &ModelFile) -> Result<(), Failure> {
    answer!(
        "{}: folder with config.json and .safetensors, {}",
        display_path(&model.path),
        format_bytes(model.size())
    )?;
    show_hyper(&model.hyper)?;
    if let Err(error) = &model.vocabulary {
        answer!("no vocabulary: {}", shorten_message(&error.to_string()))?;
    }
    answer!("\ntensors")?;
    for t in &model.tensors {
        answer!(
            "  {:<48}  {:<22}  {:<4}  {:>16}  {:>9}",
            shorten(&t.name),
            t.role.to_string(),
            t.dtype,
            format!("{} x {}", t.rows, t.cols),
            format_bytes(t.place.len() as u64)
        )?;
    }
    Ok(())
}

fn htz_json(artifact: &Htz) -> Result<Inspection<'_>, Failure> {
    let (major, minor) = artifact.format();
    let metadata = artifact.source_metadata();
    let metadata = metadata.map_err(|fault| fault.in_file(artifact.map().path()))?;
    let metadata = metadata.iter().flat_map(SourceMetadata::summary);
    Ok(Inspection::Artifact(Box::new(ArtifactJson {
        source_metadata: metadata.collect(),
        format: "htz",
        version: format!("{major}.{minor}"),
        bytes: artifact.map().len(),
        source_bytes: artifact
            .manifest()
            .source
            .is_some()
            .then(|| artifact.manifest().source_bytes()),
        bits_per_weight: bits_per_weight(
            artifact.bytes_without_source(),
            weights(artifact.manifest()),
        ),
        manifest: artifact.manifest(),
    })))
}

fn show_htz(path: &Path, artifact: &Htz) -> Result<(), Failure> {
    let manifest = artifact.manifest();
    let (major, minor) = artifact.format();
    answer!(
        "{}: artifact of format {major}.{minor}, {}, {:.2} bits for each of the source's weights",
        display_path(path),
        format_bytes(artifact.map().len() as u64),
        bits_per_weight(artifact.bytes_without_source(), weights(manifest))
    )?;
    show_hyper(&manifest.hyper)?;
    show_source_metadata(artifact)?;
    show_origin(manifest)?;
    show_kv_bases(artifact)?;
    show_source(artifact)?;
    show_kernels(artifact)?;
    show_plan(&manifest.plan)?;
    answer!("\ntensors")?;
    for t in &manifest.tensors {
        answer!(
            "  {:<36}  {:<8}  {:>14}  {:>9}",
            t.role.to_string(),
            type_for_people(t),
            format!("{} x {}", t.rows, t.cols),
            format_bytes(t.length)
        )?;
    }
    let others = manifest.sections.len() - manifest.source_sections().len();
    for s in &manifest.sections[..others] {
        answer!(
            "  section {:<28}  {:>26}",
            shorten(&s.name),
            format_bytes(s.length)
        )?;
    }
    Ok(())
}

fn show_source_metadata(artifact: &Htz) -> Result<(), Failure> {
    match artifact.source_metadata() {
        Ok(metadata) => {
            for (name, value) in metadata.iter().flat_map(SourceMetadata::summary) {
                let name = name.replace('_', " ");
                answer!("{name} of the source: {}", shorten(&value))?;
            }
        }
        Err(error) => answer!("metadata of the source: {error}")?,
    }
    Ok(())
}

fn show_origin(manifest: &Manifest) -> Result<(), Failure> {
    let p = &manifest.provenance;
    answer!(
        "\nmade by {} {} on {} from a {} of {}, sha256 {}",
        shorten(&p.program),
        shorten(&p.version),
        shorten(&p.instruction_set),
        shorten(&p.source_format),
        format_bytes(p.source_bytes),
        p.source_sha256
    )?;
    let plan = &manifest.plan;
    let matrices = plan.projections.iter().chain(&plan.matrices);
    let has_factors = matrices
        .map(|matrix| matrix.form)
        .any(|form| form != Form::Dense);
    let factors = if has_factors {
        format!(", factors in {}", plan.factor_type)
    } else {
        String::new()
    };
    answer!("\nmethod {}{factors}", shorten(&plan.method))?;
    if let Some(c) = &manifest.provenance.calibration {
        answer!(
            "calibrated on {} in windows of {}, gauge {}, text sha256 {}",
            format_count(c.tokens, "token"),
            c.context,
            shorten(&c.gauge),
            c.text_sha256
        )?;
    }
    if let Some(t) = &manifest.provenance.treatment {
        answer!(
            "treated with gauge {}, sink {}, bias {}{}",
            shorten(&t.gauge),
            t.sink.as_deref().map_or_else(|| "off".into(), shorten),
            if t.bias { "on" } else { "off" },
            t.shrinkage
                .map_or_else(String::new, |part| format!(", shrinkage {part}"))
        )?;
    }
    if let Some(order) = &p.order {
        answer!("stored in an order of its own, sha256 {order}")?;
    }
    if let Some(t) = &manifest.provenance.tuning {
        answer!(
            "scales tuned in {}: KL divergence {:.5} -> {:.5} nats on held-out text",
            format_count(t.steps, "step"),
            t.kl_before,
            t.kl_after
        )?;
    }
    for line in active_fraction_table(&manifest.dial) {
        answer!("{line}")?;
    }
    if let Some(quality) = &manifest.quality {
        show_quality(quality)?;
    }
    if let Some(a) = &plan.allocation {
        // It divides ranks.
        let allocator = has_factors.then(|| format!("allocator {}", shorten(&a.allocator)));
        let budget = a.budget.as_ref();
        let parts = [
            allocator,
            budget.map(|budget| format!("requested {}", shorten(budget))),
            a.rank_floor
                .as_ref()
                .map(|floor| format!("rank floor {}", shorten(floor))),
            a.rank_cap.map(|cap| format!("rank cap {cap}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            answer!("{}", parts.join(", "))?;
        }
        for note in &a.notes {
            answer!("  note: {}", shorten_message(note))?;
        }
    }
    Ok(())
}

/// Fraction of the energy for the displayed number of components.
const ENERGY_FRACTION: f32 = 0.9;

fn show_kv_bases(artifact: &Htz) -> Result<(), Failure> {
    let manifest = artifact.manifest();
    let tensors = || manifest.tensors.iter();
    let bytes = tensors().filter_map(|t| match t.role {
        Role::KvBasis { .. } | Role::KvEnergies { .. } => Some(t.length),
        _ => None,
    });
    let bytes = bytes.fold(0, u64::saturating_add);
    if bytes == 0 {
        return Ok(());
    }
    let size = manifest.hyper.head_size;
    let needed = KvSide::ALL.map(|wanted| {
        let own =
            tensors().filter(|t| matches!(t.role, Role::KvEnergies { side, .. } if side == wanted));
        let (mut sum, mut heads) = (0, 0);
        for entry in own {
            let mut energies = vec![0.0; (entry.rows as usize).saturating_mul(size)];
            // Damaged tensors are reported by `htc verify`.
            if block::decode(entry.dtype, artifact.tensor_bytes(entry), &mut energies).is_err() {
                continue;
            }
            for head in energies.chunks_exact(size.max(1)) {
                sum += components_for(head);
                heads += 1;
            }
        }
        sum as f64 / f64::from(heads.max(1))
    });
    let [keys, values] = needed;
    answer!(
        "bases for an adaptive KV cache, {}: {:.0} % of the energy is in {keys:.1} of {size} components of keys, {values:.1} of values",
        format_bytes(bytes),
        100.0 * ENERGY_FRACTION,
    )?;
    Ok(())
}

fn components_for(energies: &[f32]) -> usize {
    let mut held = 0.0;
    let enough = energies.iter().position(|energy| {
        held += energy;
        held >= ENERGY_FRACTION
    });
    enough.map_or(energies.len(), |last| last + 1)
}

fn show_source(artifact: &Htz) -> Result<(), Failure> {
    let Some(source) = &artifact.manifest().source else {
        return Ok(());
    };
    let shared = source.tensors.iter().filter(|tensor| tensor.shared).count();
    answer!(
        "\ncontains its source's weights: {} besides the {} of the compressed part, to which sizes and bits refer; both share {shared} of {} tensors",
        format_bytes(artifact.manifest().source_bytes()),
        format_bytes(artifact.bytes_without_source()),
        source.tensors.len(),
    )?;
    Ok(())
}

fn show_kernels(artifact: &Htz) -> Result<(), Failure> {
    let code = match artifact.kernels() {
        Ok(None) => return Ok(()),
        Ok(Some(code)) => code,
        Err(error) => return answer!("\nkernels for GPUs: {error}"),
    };
    let names = code
        .architectures()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let own = if code.sources == htc_kernels::cuda::source::sources_digest() {
        "this program's sources"
    } else {
        "sources of another version, which this program does not use"
    };
    let bytes = code
        .images
        .iter()
        .map(|image| image.bytes.len() as u64)
        .sum();
    answer!(
        "\nkernels for GPUs of {}, by {} from {own}: {}",
        names.join(", "),
        shorten(&code.compiler),
        format_bytes(bytes)
    )?;
    Ok(())
}

fn show_quality(quality: &QualityRecord) -> Result<(), Failure> {
    let QualityRecord {
        kl,
        perplexity_ratio: ratio,
        ..
    } = quality;
    answer!(
        "quality: KL divergence {:.5} nats{}, perplexity {:.4} of the source's{}",
        kl.value,
        format_interval(kl.interval, 5),
        ratio.value,
        format_interval(ratio.interval, 4),
    )?;
    answer!(
        "  on {} of {} that decided nothing, {} by {}, text sha256 {}",
        format_count(quality.windows, "window"),
        format_count(quality.context, "token"),
        format_count(quality.tokens, "position"),
        shorten(&quality.protocol),
        quality.text_sha256
    )?;
    Ok(())
}

fn weights(manifest: &Manifest) -> u64 {
    let projections = manifest
        .plan
        .projections
        .iter()
        .map(|projection| projection.parameters_before);
    let hyper = &manifest.hyper;
    let of_tokens = (hyper.vocabulary as u64).saturating_mul(hyper.width as u64);
    let tensors = || manifest.tensors.iter();
    let own_head = tensors().any(|t| matches!(t.role, Role::Output | Role::OutputFactor { .. }));
    // KV cache bases are not part of the source.
    let kv = |t: &TensorEntry| matches!(t.role, Role::KvBasis { .. } | Role::KvEnergies { .. });
    let vectors = tensors().filter(|t| t.rows == 1 && !kv(t));
    let vectors = vectors.map(|t| t.parameters());
    let outside = of_tokens.saturating_mul(1 + u64::from(own_head));
    projections
        .chain(vectors)
        .fold(outside, u64::saturating_add)
}

fn show_plan(plan: &PlanRecord) -> Result<(), Failure> {
    answer!("  matrix                form           rank  bytes                    bits   error")?;
    for m in plan.projections.iter().chain(&plan.matrices) {
        let rank = m.rank.map_or_else(String::new, |r| r.to_string());
        let error = m.error.map_or_else(String::new, |e| format!("{e:.5}"));
        answer!(
            "  {:<20}  {:<12}  {rank:>5}  {:>9} -> {:>9}  {:>5.2}  {error:>7}",
            m.id.to_string(),
            form_for_people(m.form),
            format_bytes(m.bytes_before),
            format_bytes(m.bytes_after),
            bits_per_weight(m.bytes_after, m.parameters_before),
        )?;
    }
    for basis in &plan.bases {
        let role = Role::Basis {
            layer: basis.layer,
            group: basis.group,
        };
        answer!(
            "  {:<20}  rank {}, {}",
            role.to_string(),
            basis.rank,
            format_bytes(basis.bytes)
        )?;
    }
    for note in notes(plan) {
        answer!("  note: {}", shorten_message(&note))?;
    }
    Ok(())
}

fn type_for_people(entry: &TensorEntry) -> String {
    let Some(codes) = &entry.codes else {
        return entry.dtype.to_string();
    };
    let rotated = if codes.is_rotated() { ", rotated" } else { "" };
    match (codes, codes.uniform_code()) {
        (_, Some(code)) => format!("{code}{rotated}"),
        (CodeLayout::Uniform(_), None) => format!("bands {:.2}{rotated}", codes.mean_bits()),
        (CodeLayout::Classes(of), None) => {
            let classes = of.iter().len();
            let bits = codes.mean_bits();
            format!("bands {bits:.2}, {classes} classes of rows{rotated}")
        }
    }
}

fn form_for_people(form: Form) -> &'static str {
    match form {
        Form::Dense => "dense",
        Form::LowRank => "low rank",
        Form::SharedBasis => "shared basis",
        Form::Residual => "residual",
    }
}

fn feed_forward(h: &HyperParameters) -> String {
    match h.forward.experts {
        None => format!("ffn {}", h.ffn),
        Some(experts) => format!(
            "{} of {} experts of {}",
            experts.used, experts.count, experts.ffn
        ),
    }
}

fn show_hyper(h: &HyperParameters) -> Result<(), Failure> {
    answer!(
        "{}{}: {}, width {}, {} of {} ({} for keys and values), {}, vocabulary {}, context {}",
        shorten(&h.architecture),
        h.name
            .as_deref()
            .map(|n| format!(" {}", shorten(n)))
            .unwrap_or_default(),
        format_count(h.layers, "layer"),
        h.width,
        format_count(h.heads, "head"),
        h.head_size,
        h.kv_heads,
        feed_forward(h),
        h.vocabulary,
        h.context
    )?;
    Ok(())
}
