use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use htc_formats::DType;
use htc_formats::model::MatrixId;

use super::*;

fn member(projection: ProjectionKind, rows: usize, cols: usize) -> UnitMatrix {
    UnitMatrix {
        matrix: MatrixId::Projection {
            layer: 3,
            projection,
        },
        rows,
        cols,
        source_type: DType::F32,
    }
}

#[test]
fn known_spectrum_is_summarised() {
    let values = [4.0, 2.0, 2.0, 1.0, 0.0];
    let found = spectrum_of(
        3,
        ProjectionKind::K,
        &member(ProjectionKind::K, 5, 9),
        &values,
    );
    assert_eq!((found.norm, found.largest, found.layer), (5.0, 4.0, 3));
    assert_eq!(found.stable_rank, 1.5625);
    assert_eq!(found.ranks, [1, 2, 3, 3, 4]);
    let tail = |squares: f64| rounded((squares / 25.0).sqrt());
    let expected = [9.0, 9.0, 9.0, 5.0, 1.0, 1.0, 0.0, 0.0].map(tail);
    assert_eq!(found.tails.none, expected);
    let curve = [(0, 0.0), (1, 0.64), (2, 0.8), (3, 0.96), (4, 1.0), (5, 1.0)];
    assert_eq!(found.curve, curve);
    let long = spectrum_of(
        0,
        ProjectionKind::K,
        &member(ProjectionKind::K, 1000, 1000),
        &vec![1.0; 1000],
    );
    assert_eq!((long.curve.len(), long.curve[32]), (33, (1000, 1.0)));
    assert_eq!(long.curve[16], (500, 0.5));
}

#[test]
fn zero_weight_has_no_error() {
    let found = spectrum_of(
        0,
        ProjectionKind::Q,
        &member(ProjectionKind::Q, 4, 4),
        &[0.0; 4],
    );
    assert_eq!((found.norm, found.stable_rank), (0.0, 0.0));
    assert_eq!(found.ranks, [0; 5]);
    assert_eq!(found.tails.none, [0.0; 8]);
}

#[test]
fn shared_basis_error_is_the_energy_outside_it() {
    let unit = Unit {
        layer: 1,
        members: vec![
            member(ProjectionKind::Gate, 2, 4),
            member(ProjectionKind::Up, 2, 4),
        ],
        outs: 4,
        cols: 4,
        rank_limit: 4,
    };
    let components = SharedComponents {
        basis: Vec::new(),
        energies: vec![vec![9.0, 0.0, 1.0, 0.0], vec![0.0, 4.0, 0.0, 0.0]],
    };
    let values = [vec![3.0, 1.0], vec![2.0, 0.0]];
    let found = shared_basis_cost(&unit, InputGroup::GateUp, &components, &values);
    assert_eq!(found.ranks, [1, 1, 1, 2, 2, 3, 3, 4]);
    let [gate, up] = &found.members[..] else {
        panic!("{found:?}");
    };
    assert_eq!(gate.errors[0], rounded(0.1f64.sqrt()));
    assert_eq!(gate.excess[0], Some(1.0));
    assert_eq!((gate.errors[3], gate.excess[3]), (gate.errors[0], None));
    assert_eq!(
        (gate.errors[5], up.errors[0], up.errors[3]),
        (0.0, 1.0, 0.0)
    );
    assert_eq!(up.excess[0], None);
}

#[test]
fn coverage_is_the_norm_of_the_projection() {
    let mut basis = vec![0.0; 16];
    (0..4).for_each(|i| basis[i * 4 + i] = 1.0);
    let components = SharedComponents {
        basis,
        energies: Vec::new(),
    };
    let found = sink_coverage(&components, &[3.0, 0.0, 4.0, 0.0]).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].rank, found[0].norm, found[0].largest),
        (1, 0.6, 0.6)
    );
    assert_eq!((found[1].rank, found[1].norm), (2, 0.6));
}

/// The weights are unpublished, so shared bases cannot be checked.
#[test]
fn published_spectra_are_reproduced() {
    let shared = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let folder = shared.join("targets");
    let Ok(bytes) = fs::read(folder.join("spectra.safetensors")) else {
        println!("skipped: no published spectra in {}", folder.display());
        return;
    };
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let values = |name: &str| -> Vec<f64> {
        let offsets: [usize; 2] =
            serde_json::from_value(json[name]["data_offsets"].clone()).unwrap();
        let data = &bytes[header + offsets[0]..header + offsets[1]];
        let numbers = data.as_chunks::<4>().0.iter();
        numbers.map(|b| f64::from(f32::from_le_bytes(*b))).collect()
    };
    let text = fs::read_to_string(folder.join("spectra_summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut spectra = BTreeMap::new();
    let (mut compared, mut exact) = (0, 0);
    for (layer, groups) in summary["per_layer"].as_object().unwrap() {
        for group in groups.as_object().unwrap().values() {
            for (name, published) in group.as_object().unwrap() {
                let projection: ProjectionKind = name.to_lowercase().parse().unwrap();
                let side = |i: usize| published["shape"][i].as_u64().unwrap() as usize;
                let member = member(projection, side(0), side(1));
                let values = values(&format!("layer{layer}.{name}"));
                assert_eq!(values.len(), member.rows.min(member.cols));
                let found = spectrum_of(layer.parse().unwrap(), projection, &member, &values);
                for (found, published, tolerance) in [
                    (found.norm, &published["frob_norm"], 1e-3),
                    (found.largest, &published["top_sv"], 1e-5),
                ] {
                    let published = published.as_f64().unwrap();
                    assert!(
                        (found / published - 1.0).abs() < tolerance,
                        "{found} {published}"
                    );
                }
                let ranks = found.ranks.iter().zip(ENERGIES);
                for (&found, energy) in ranks {
                    let published = &published["rank_for_energy"][format!("{energy:.2}")];
                    let published = published.as_u64().unwrap() as usize;
                    // Summed in float32: a rank may be off by one.
                    assert!(found.abs_diff(published) <= 1, "{layer} {name} {energy}");
                    exact += usize::from(found == published);
                    compared += 1;
                }
                spectra.insert((layer.clone(), name.clone()), found);
            }
        }
    }
    assert_eq!((compared, spectra.len()), (175, 35));
    assert!(exact >= 171, "{exact}");

    let table = fs::read_to_string(folder.join("ey_per_layer.csv")).unwrap();
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut compared = 0;
    for line in lines {
        let values: Vec<&str> = line.split(',').collect();
        let value = |name: &str| values[columns.iter().position(|c| *c == name).unwrap()];
        let k: usize = value("k").parse().unwrap();
        for name in ["Q", "K", "V"] {
            let found = &spectra[&(value("layer").to_owned(), name.to_owned())];
            let full = found.rows.min(found.cols);
            let published: f64 = value(&format!("{name}_ey")).parse().unwrap();
            if k >= full {
                assert_eq!(published, 0.0);
                continue;
            }
            let at = FRACTIONS
                .iter()
                .position(|f| rank_at(*f, full) == k)
                .unwrap();
            let tail = found.tails.none[at];
            assert!(
                (tail * tail - published).abs() < 2e-6,
                "{name} {k}: {tail} {published}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * (4 + 1 + 1));
}
