//! Tests on the published singular values of an 8B Llama, if available.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use super::*;

const LAYERS: [usize; 5] = [0, 7, 15, 23, 31];

struct Published {
    folder: PathBuf,
    spectra: BTreeMap<String, Vec<f64>>,
}

fn published() -> Option<Published> {
    let shared = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let folder = shared.join("targets");
    let Ok(bytes) = fs::read(folder.join("spectra.safetensors")) else {
        println!("skipped: no published spectra in {}", folder.display());
        return None;
    };
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let tensors = json.as_object().unwrap().iter();
    let spectra = tensors
        .filter(|(name, _)| name.starts_with("layer"))
        .map(|(name, entry)| {
            let offsets: [usize; 2] =
                serde_json::from_value(entry["data_offsets"].clone()).unwrap();
            let data = &bytes[header + offsets[0]..header + offsets[1]];
            let numbers = data.chunks_exact(4);
            let numbers = numbers.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())));
            (name.clone(), numbers.collect())
        });
    Some(Published {
        spectra: spectra.collect(),
        folder,
    })
}

#[test]
fn ranks_by_energy_match_the_published_values() {
    let Some(published) = published() else { return };
    let text = fs::read_to_string(published.folder.join("spectra_summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (mut compared, mut exact) = (0, 0);
    for layer in LAYERS {
        let groups = &summary["per_layer"][layer.to_string()];
        for (projection, told) in groups.as_object().unwrap().values().flat_map(|g| {
            let projections = g.as_object().unwrap();
            projections.iter()
        }) {
            let lost =
                waterfill::lost_energy(&published.spectra[&format!("layer{layer}.{projection}")]);
            let ranks = told["rank_for_energy"].as_object().unwrap();
            assert_eq!(ranks.len(), 5);
            for (energy, rank) in ranks {
                let energy: f64 = energy.parse().unwrap();
                let found = lost.partition_point(|l| *l > 1.0 - energy);
                let told = rank.as_u64().unwrap() as usize;
                let close = (1.0 - lost[told] - energy).abs() < 1e-4;
                assert!(
                    found == told || found.abs_diff(told) == 1 && close,
                    "{layer} {projection} {energy}"
                );
                exact += usize::from(found == told);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 5 * 7 * 5);
    assert!(exact >= 171, "{exact}");
}

#[test]
fn eckart_young_tails_match_the_published_values() {
    let Some(published) = published() else { return };
    let table = fs::read_to_string(published.folder.join("ey_per_layer.csv")).unwrap();
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut compared = 0;
    for line in lines {
        let values: Vec<f64> = line.split(',').map(|v| v.parse().unwrap()).collect();
        let value = |name: &str| values[columns.iter().position(|c| *c == name).unwrap()];
        for projection in ["Q", "K", "V"] {
            let name = format!("layer{}.{projection}", value("layer"));
            let lost = waterfill::lost_energy(&published.spectra[&name]);
            let found = lost[(value("k") as usize).min(lost.len() - 1)];
            let told = value(&format!("{projection}_ey"));
            assert!((found - told).abs() < 2e-6, "{name}: {found} {told}");
            compared += 1;
        }
    }
    assert!(compared >= 36);
}

/// Time limit in seconds for a model of 8 billion parameters: a nested loop over units and ranks
/// would take minutes.
const MOST_SECONDS: f64 = 5.0;

/// Layers in between use the spectra of the nearest published one.
#[test]
fn published_spectra_are_allocated_within_the_time_limit() {
    let Some(published) = published() else { return };
    let hyper = eight_billion();
    let name = |projection: ProjectionKind| match projection {
        ProjectionKind::Q | ProjectionKind::K | ProjectionKind::V | ProjectionKind::O => {
            projection.name().to_uppercase()
        }
        _ => projection.name().to_owned(),
    };
    let asked = request(Allocator::Waterfill, Budget::Ratio(0.6));
    let units = units(&hyper, &asked, |_, _| DType::F16).unwrap();
    assert_eq!(units.len(), 224);
    let spectrum = |u: &Unit| {
        let nearest = LAYERS.iter().min_by_key(|l| l.abs_diff(u.layer)).unwrap();
        published.spectra[&format!(
            "layer{nearest}.{}",
            name(u.members[0].projection().unwrap())
        )]
            .clone()
    };
    let spectra: Vec<Vec<f64>> = units.iter().map(spectrum).collect();
    let evidence = Evidence {
        whitened: Some(spectra.clone()),
        spectra: Some(spectra),
        variance: Some((0..32).map(|l| 1.0 + (l as f64 - 12.0).powi(2)).collect()),
        l2_bytes: Some(40 << 20),
        tokens_per_joule: Some(0.4),
        ..Evidence::default()
    };
    let mut losses = BTreeMap::new();
    for factor_type in [DType::F16, DType::Q8_0] {
        for budget in [Budget::Ratio(0.6), Budget::Bytes(5_000_000_000)] {
            for allocator in Allocator::ALL {
                let mut request = request(allocator, budget);
                request.factor_type = factor_type;
                let started = Instant::now();
                let plan = compute(&hyper, request, &evidence, |_, _| DType::F16).unwrap();
                let seconds = started.elapsed().as_secs_f64();
                let units = plan.units.iter().zip(evidence.spectra.as_ref().unwrap());
                let lost = units.map(|(u, s)| {
                    let lost = waterfill::lost_energy(s);
                    u.rank().map_or(0.0, |rank| lost[rank])
                });
                let lost = lost.sum::<f64>() / 224.0;
                let dense = plan
                    .units
                    .iter()
                    .filter(|u| u.form == MatrixForm::Unchanged)
                    .count();
                println!(
                    "{factor_type} {budget:?} {allocator}: {seconds:.3} s, mean energy lost {lost:.4}, \
                     ratio {:.4}, dense units {dense}",
                    plan.ratio()
                );
                assert!(seconds < MOST_SECONDS, "{allocator}: {seconds} s");
                let bytes: u64 = plan.units.iter().map(UnitPlan::bytes_after).sum();
                match budget {
                    Budget::Bytes(most) => assert!(bytes <= most, "{allocator}: {bytes}"),
                    _ if allocator == Allocator::CacheFit => assert!(plan.ratio() <= 0.6),
                    _ => assert!(plan.ratio() <= 0.6 && plan.ratio() > 0.599, "{allocator}"),
                }
                losses.insert(
                    (
                        factor_type.name(),
                        budget == Budget::Ratio(0.6),
                        allocator.name(),
                    ),
                    lost,
                );
            }
        }
    }
    for ((factor_type, ratio, _), lost) in &losses {
        let of = |allocator| losses[&(*factor_type, *ratio, allocator)];
        assert!(of("waterfill") <= *lost);
        assert!(of("waterfill") < 0.9 * of("uniform"), "{losses:?}");
    }
}
