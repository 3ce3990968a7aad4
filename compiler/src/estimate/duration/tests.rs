use super::*;
use crate::plan::UnitMatrix;
use htc_formats::DType;
use htc_formats::model::{MatrixId, ProjectionKind};

fn unit(rows: usize, cols: usize, rank: usize) -> UnitPlan {
    UnitPlan {
        members: vec![UnitMatrix {
            matrix: MatrixId::Projection {
                layer: 0,
                projection: ProjectionKind::Up,
            },
            rows,
            cols,
            source_type: DType::F32,
        }],
        form: MatrixForm::LowRank {
            rank,
            a: DType::F32,
            b: DType::F32,
        },
        notes: Vec::new(),
    }
}

#[test]
fn threads_do_not_split_a_unit() {
    let speed = Speed::from_rates(1e9, 1e8);
    let seconds = |units: &[UnitPlan], threads, calibrated| {
        let units = units.iter().map(|unit| (unit, calibrated));
        speed.unit_seconds(units, threads)
    };
    let units = [unit(512, 512, 64), unit(512, 512, 64)];
    let one = seconds(&units, 1, false);
    assert_eq!(seconds(&units, 2, false), one / 2.0);
    assert_eq!(seconds(&units, 8, false), one / 2.0);
    assert!(seconds(&units, 1, true) > one);
    let mut dense = unit(512, 512, 64);
    dense.form = MatrixForm::Unchanged;
    assert_eq!(seconds(&[dense], 1, true), 0.0);
}

#[test]
fn measured_speed_is_plausible() {
    let speed = Speed::measure();
    for rate in [speed.0.products, speed.0.cubes] {
        assert!(rate.is_finite() && rate > 1e6, "{speed:?}");
    }
}
