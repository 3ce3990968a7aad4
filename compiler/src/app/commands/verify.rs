//! `htc verify`.

use std::time::Instant;

use htc_formats::htz::{Htz, HtzError, SpectrumRecord};
use htc_formats::model::MatrixId;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Failure, InFile as _, Opened, open_container, print_json};
use crate::app::cli::{Document, VerifyArgs};
use crate::app::terminal::display_path;
use crate::geometry::probe;
use crate::system::show::format_bytes;

#[derive(JsonSchema, Serialize)]
pub(super) struct Outcome {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
    #[serde(flatten)]
    sweep: Option<DigestCheck>,
}

#[derive(JsonSchema, Serialize)]
struct Probe {
    ok: bool,
    layer: usize,
    /// `measured` or `guessed`, from the artifact's depth sink; `asked` with `--layer`; else
    /// `null`.
    origin: Option<&'static str>,
    milliseconds: f64,
    /// Empty if the artifact has no spectra.
    projections: Vec<ProbedProjection>,
}

#[derive(JsonSchema, Serialize)]
struct ProbedProjection {
    id: MatrixId,
    ok: bool,
    expected: SpectrumRecord,
    found: SpectrumRecord,
}

#[derive(Default, JsonSchema, Serialize)]
struct DigestCheck {
    items: usize,
    bytes: u64,
    damaged: Vec<Damage>,
    #[serde(skip)]
    first: Option<HtzError>,
}

#[derive(JsonSchema, Serialize)]
struct Damage {
    item: String,
    fault: String,
}

pub(super) fn execute(args: &VerifyArgs) -> Result<(), Failure> {
    let artifact = match open_container(&args.file) {
        Ok(Opened::Htz(artifact)) => artifact,
        Ok(Opened::Gguf(_) | Opened::Folder(_)) => {
            return Err(Failure::NoDigests(args.file.clone()));
        }
        Err(Failure::Htz(fault)) => {
            // Report files that do not open in JSON as well.
            if args.json {
                let damaged = vec![Damage {
                    item: "header or manifest".into(),
                    fault: fault.to_string(),
                }];
                print_json(
                    Document::Verification,
                    &Outcome {
                        ok: false,
                        probe: None,
                        sweep: Some(DigestCheck {
                            damaged,
                            ..DigestCheck::default()
                        }),
                    },
                )?;
            }
            return Err(fault.into());
        }
        Err(failure) => return Err(failure),
    };
    let probe = args
        .probe
        .then(|| probe_layer(&artifact, args))
        .transpose()?;
    let sweep = match &probe {
        Some(probe) if probe.ok => None,
        _ => Some(check_digests(&artifact)),
    };
    let mut outcome = Outcome {
        ok: probe
            .as_ref()
            .is_none_or(|probe| probe.ok || probe.projections.is_empty())
            && sweep.as_ref().is_none_or(|sweep| sweep.damaged.is_empty()),
        probe,
        sweep,
    };
    if args.json {
        print_json(Document::Verification, &outcome)?;
    }
    let Some(sweep) = &mut outcome.sweep else {
        return Ok(());
    };
    if let Some(first) = sweep.first.take() {
        return Err(Failure::Damaged {
            path: args.file.clone(),
            faults: sweep.damaged.len(),
            items: sweep.items,
            first,
        });
    }
    if let Some(probe) = outcome.probe.filter(|_| !outcome.ok) {
        return Err(Failure::Probe {
            path: args.file.clone(),
            layer: probe.layer,
            projections: probe.mismatched_projections(),
        });
    }
    if args.json {
        return Ok(());
    }
    answer!(
        "{}: undamaged: header, manifest and {} parts ({}) equal their digests",
        display_path(&args.file),
        sweep.items,
        format_bytes(sweep.bytes)
    )
}

fn probe_layer(artifact: &Htz, args: &VerifyArgs) -> Result<Probe, Failure> {
    let path = &args.file;
    let manifest = artifact.manifest();
    let layers = manifest.hyper.layers;
    if let Some(layer) = args.layer.filter(|&layer| layer >= layers) {
        return Err(Failure::NoSuchLayer {
            path: path.clone(),
            layer,
            layers,
        });
    }
    let Some(geometry) = &manifest.geometry else {
        let (major, minor) = artifact.format();
        say!(
            "{}: nothing to probe: the artifact (format {major}.{minor}) says nothing of its spectra; every digest follows",
            display_path(path)
        );
        return Ok(Probe {
            ok: false,
            layer: args.layer.unwrap_or(0),
            origin: None,
            milliseconds: 0.0,
            projections: Vec::new(),
        });
    };
    let (layer, origin) = match args.layer {
        Some(layer) => (layer, "asked"),
        None => (geometry.depth_sink.layer, geometry.depth_sink.origin.name()),
    };
    let expected = geometry
        .spectra
        .iter()
        .filter(|s| s.id.layer() == Some(layer));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let started = Instant::now();
    let bytes = |entry| artifact.tensor_bytes(entry);
    let found = probe::spectra(&manifest.tensors, bytes, layer, threads).in_file(path)?;
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    let compared = expected
        .zip(found)
        .map(|(expected, found)| ProbedProjection {
            id: expected.id,
            ok: probe::agree(expected, &found),
            expected: *expected,
            found,
        });
    let projections: Vec<ProbedProjection> = compared.collect();
    let probe = Probe {
        ok: projections.iter().all(|projection| projection.ok),
        layer,
        origin: Some(origin),
        milliseconds,
        projections,
    };
    let place = match args.layer {
        Some(_) => format!("layer {layer} of {layers}"),
        None => format!("layer {layer} of {layers}, the depth sink ({origin}),"),
    };
    let path = display_path(path);
    if args.json {
        // The record says it.
    } else if probe.ok {
        answer!(
            "{path}: probed {place} in {milliseconds:.1} ms: the spectra of its projections are those that the artifact says; other parts were not read"
        )?;
    } else {
        let projections = probe.mismatched_projections();
        say!(
            "{path}: probed {place} in {milliseconds:.1} ms: other spectra than the artifact says ({projections}); every digest follows"
        );
    }
    Ok(probe)
}

impl Probe {
    fn mismatched_projections(&self) -> String {
        let projections = self.projections.iter().filter(|projection| !projection.ok);
        let ids: Vec<String> = projections
            .map(|projection| projection.id.to_string())
            .collect();
        ids.join(", ")
    }
}

fn check_digests(artifact: &Htz) -> DigestCheck {
    let mut sweep = DigestCheck::default();
    let result = artifact.verify_all(|item| {
        sweep.items += 1;
        sweep.bytes += item.bytes;
        if let Some(fault) = item.error {
            sweep.damaged.push(Damage {
                item: item.item.to_owned(),
                fault: fault.to_string(),
            });
        }
    });
    sweep.first = result.err();
    sweep
}
