//! `--sink channels:T`: input channels that stay exact.

use htc_formats::DType;
use htc_tests::artifact::Artifact;
use htc_tests::{Scratch, TinyModel};

use super::treatment::{READS, all_projections, calibrated, source, with};
use super::{FACTOR_TYPES, compile, list};

#[test]
fn exempt_channels_are_exact() {
    let scratch = Scratch::new();
    let calibration = calibrated(&scratch);
    let cases = FACTOR_TYPES.map(|factor_type| (DType::F32, factor_type));
    let others = [
        (DType::F16, "q8_0"),
        (DType::F16, "bf16"),
        (DType::BF16, "q4_0"),
        (DType::Q8_0, "q8_0"),
    ];
    for (number, (source_type, factor_type)) in cases.into_iter().chain(others).enumerate() {
        let tiny = TinyModel {
            dtype: source_type,
            ffn: 128,
            ..TinyModel::default()
        };
        let model = scratch.file(&format!("model-{number}.gguf"), tiny.bytes());
        let mut tensors = tiny.tensors();
        for tensor in &mut tensors {
            tensor.values = tensor.decoded();
        }
        let options = ["--rank", "6", "--factor-type", factor_type, "--force"];
        for (method, calibration) in [
            ("low-rank", &[][..]),
            ("low-rank", &calibration),
            ("shared-basis", &[]),
        ] {
            let options = [&options[..], &["--method", method]].concat();
            let options = [
                &options[..],
                &all_projections(method),
                &["--sink", "channels:4"],
            ]
            .concat();
            let options = with(&options, calibration);
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let artifact = Artifact::open(&artifact);
            let units = list(&report, "/exempt");
            let per_layer = if method == "low-rank" { 5 } else { 2 };
            assert_eq!(units.len(), per_layer * tiny.layers);
            for unit in units {
                let channels: Vec<usize> = list(unit, "/channels")
                    .iter()
                    .map(|c| c.as_u64().unwrap() as usize)
                    .collect();
                assert!(channels.len() == 4 && channels.is_sorted_by(|a, b| a < b));
                let layer = unit["layer"].as_u64().unwrap() as usize;
                let mut energy = vec![0.0; tiny.width];
                for projection in list(unit, "/projections") {
                    let projection = projection.as_str().unwrap();
                    let (_, name) = READS.iter().find(|(read, _)| *read == projection).unwrap();
                    let exact = source(&tensors, layer, name);
                    let stored = artifact.dense_projection(layer, projection);
                    for row in 0..exact.rows {
                        for (channel, energy) in energy.iter_mut().enumerate() {
                            *energy += exact.at(row, channel).powi(2);
                        }
                        for &channel in &channels {
                            assert_eq!(stored.at(row, channel), exact.at(row, channel));
                        }
                    }
                }
                if calibration.is_empty() {
                    let mut order: Vec<usize> = (0..tiny.width).collect();
                    order.sort_by(|a, b| energy[*b].total_cmp(&energy[*a]));
                    order.truncate(4);
                    order.sort_unstable();
                    assert_eq!(channels, order);
                }
            }
            assert!(list(&report, "/measured").iter().all(|of| {
                let reads = READS.iter().any(|(read, _)| of["projection"] == *read);
                of.get("predicted").is_none() == reads
            }));
        }
    }
}
