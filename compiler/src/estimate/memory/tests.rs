use htc_formats::DType;
use htc_formats::model::Experts;

use super::*;
use crate::calibrate::tests::hyper;
use crate::plan::UnitMatrix;

fn mixture() -> HyperParameters {
    let mut hyper = HyperParameters {
        width: 512,
        ffn: 1024,
        heads: 8,
        kv_heads: 2,
        head_size: 64,
        ..hyper()
    };
    hyper.forward.experts = Some(Experts {
        count: 16,
        used: 2,
        ffn: 1024,
        normalised: true,
    });
    hyper
}

#[test]
fn calibration_of_a_mixture_adds_the_sums_of_its_experts() {
    let (mixture, mut dense) = (mixture(), mixture());
    dense.forward.experts = None;
    // Tiles of 64 of the lower triangle, and 512 vectors.
    let sums = |order: u64| {
        let strips = order / 64;
        8 * strips * (strips + 1) / 2 * 64 * 64 + 4 * 512 * order
    };
    let experts = 3 * sums(512) + 16 * (sums(512) + sums(1024));
    let experts = experts + 2 * sums(512) + 3 * 2 * sums(64);
    assert_eq!(calibrate::sums_bytes(&mixture), experts);
    let more = calibration_bytes(&mixture, 64) - calibration_bytes(&dense, 64);
    assert_eq!(more, experts - calibrate::sums_bytes(&dense));
    let (width, hidden) = (8 * 512 * 512, 8 * 1024 * 1024);
    for (gauged, moments) in [(false, 1), (true, 4)] {
        let bytes = |hyper, threads| moment_bytes(hyper, threads, gauged);
        // The cache holds eight inputs instead of those of two layers.
        let inputs = 8 * 3 * width - 2 * 9 * width;
        for (threads, together) in [(1, 1), (3, 1), (4, 2), (8, 3)] {
            let more = bytes(&mixture, threads) - bytes(&dense, threads);
            let hidden = (together - 1) * moments * hidden;
            assert_eq!(more, inputs + hidden, "{threads}");
        }
    }
}

#[test]
fn down_projections_of_experts_need_the_memory_of_a_decomposition() {
    let bytes = |projection| {
        let matrix = MatrixId::Projection {
            layer: 0,
            projection,
        };
        let unit = UnitPlan {
            members: vec![UnitMatrix {
                matrix,
                rows: 512,
                cols: 1024,
                source_type: DType::F16,
            }],
            form: MatrixForm::LowRank {
                rank: 64,
                a: DType::F16,
                b: DType::F16,
            },
            notes: Vec::new(),
        };
        unit_bytes(&unit)
    };
    let down = bytes(ProjectionKind::Down);
    assert_eq!(bytes(ProjectionKind::ExpertDown(5)), down);
    let more = 8 * (2 * 512 * 1024 + 2 * 512 * 512);
    assert_eq!(down - bytes(ProjectionKind::ExpertUp(5)), more);
}
