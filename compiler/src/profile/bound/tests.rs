use super::*;
use htc_formats::model::{MatrixId, ProjectionKind};

fn member(projection: ProjectionKind, rows: usize, cols: usize) -> UnitMatrix {
    UnitMatrix {
        matrix: MatrixId::Projection {
            layer: 1,
            projection,
        },
        rows,
        cols,
        source_type: DType::F16,
    }
}

fn codes(members: &[UnitMatrix], energy: f64) -> Vec<(u64, f64)> {
    let numbers: u64 = members.iter().map(UnitMatrix::parameters).sum();
    let of = |bits: u64| (numbers * bits / 8, energy * 4f64.powi(-(bits as i32)));
    let kept = members.iter().map(UnitMatrix::bytes).sum();
    (2..=8).map(of).chain([(kept, 0.0)]).collect()
}

fn screened(members: &[UnitMatrix], energies: Vec<f64>, energy: f64) -> LowRankCandidates {
    let told = energies.len();
    let spectrum = EnergySpectrum {
        energies,
        covered_ranks: told,
    };
    spectrum.screen(members, &codes(members, energy)).unwrap()
}

#[test]
fn only_low_rank_weights_pass_the_bound() {
    let one = [member(ProjectionKind::Q, 512, 512)];
    let flat = screened(&one, vec![1.0; 512], 512.0);
    assert!(
        flat.forms.is_empty() && flat.closest > 1.3,
        "{}",
        flat.closest
    );
    let falls = |i: usize| (1.0 - i as f64 / 512.0).powi(2);
    let random: Vec<f64> = (0..512).map(falls).collect();
    let energy: f64 = random.iter().sum();
    assert!(screened(&one, random, energy).forms.is_empty());
    let mut of_rank = vec![0.0; 512];
    of_rank[..32].fill(16.0);
    let found = screened(&one, of_rank.clone(), 512.0);
    let ranks: Vec<usize> = found.forms.iter().filter_map(MatrixForm::rank).collect();
    assert!(found.closest < 0.01, "{}", found.closest);
    assert_eq!(ranks.last(), Some(&32));
    assert!(ranks.iter().filter(|rank| **rank == 32).count() >= 4);
    of_rank[32..].fill(1e-3);
    let tailed = screened(&one, of_rank, 512.0);
    assert!(tailed.largest() > 32 && tailed.largest() < 256);
}

#[test]
fn shared_basis_can_pay_where_single_factors_do_not() {
    let group = [
        member(ProjectionKind::Q, 128, 512),
        member(ProjectionKind::K, 128, 512),
        member(ProjectionKind::V, 128, 512),
    ];
    let mut energies = vec![0.0; 384];
    energies[..96].fill(4.0);
    let together = screened(&group, energies.clone(), 384.0);
    assert!(!together.forms.is_empty());
    assert!(
        together
            .forms
            .iter()
            .all(|form| matches!(form, MatrixForm::SharedBasis { .. }))
    );
    let alone = screened(&group[..1], energies[..128].to_vec(), 384.0);
    assert!(alone.closest > together.closest);
}

#[test]
fn energy_threshold_follows_the_formula() {
    let (m, n, bits) = (4096.0, 1024.0, 8.5);
    let one = [member(ProjectionKind::Q, 4096, 1024)];
    let all = codes(&one, 1.0);
    let lossy: Vec<(u64, f64)> = all.iter().copied().filter(|of| of.1 > 0.0).collect();
    let base = lossy[2];
    let more = (bits * (m + n) / 8.0) as u64;
    let gained = 1.0 - code_loss(&lossy, m * n, base.0 + more) / base.1;
    let law = 1.386 * bits * (m + n) / (m * n);
    assert!((gained / law - 1.0).abs() < 0.02, "{gained} {law}");
    let less = code_loss(&lossy, m * n, lossy[0].0 / 2);
    assert!((less / lossy[0].1 - 4.0).abs() < 1e-9);
}

#[test]
fn candidate_ranks_are_few_and_block_aligned() {
    let found: Vec<usize> = ranks(1100).collect();
    let small = [8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288];
    assert_eq!(found[..13], small);
    assert!(found.len() < 32 && found.windows(2).all(|pair| pair[0] < pair[1]));
    let fits = |rank: &&usize| **rank > 48;
    assert!(found.iter().filter(fits).all(|rank| rank % 32 == 0));
    assert_eq!(ranks(7).count(), 0);
}

#[test]
fn bound_samples_few_rows() {
    assert_eq!(rows_for_bound(256, 256), 160);
    assert_eq!(rows_for_bound(4096, 4096), MAX_ROWS);
    assert!(rows_for_bound(4096, 14336) < 100);
    assert_eq!(rows_for_bound(8, 256), 8);
    assert!(rows_for_bound(4096, 64) < 64);
}

#[test]
fn summary_names_the_closest_candidate() {
    let one = [member(ProjectionKind::Q, 64, 64)];
    let mut closest = LowRankSummary::default();
    closest.add(&one, None);
    closest.add(&one, Some(4.26));
    let text = closest.to_string();
    assert!(
        text.starts_with("low rank: evaluated 0 of 1 candidates"),
        "{text}"
    );
    assert!(
        text.contains("layer 1: q, loses at least 4.3 times"),
        "{text}"
    );
    closest.add(&one, Some(0.5));
    assert!(
        closest
            .to_string()
            .ends_with("low rank: evaluated 1 of 2 candidates")
    );
}

#[test]
fn smallest_factors_are_those_of_the_least_rank() {
    let group = [
        member(ProjectionKind::Q, 512, 256),
        member(ProjectionKind::K, 128, 256),
    ];
    for members in [&group[..1], &group[1..], &group[..]] {
        let outs: usize = members.iter().map(|member| member.rows).sum();
        let all = ranks(outs.min(256)).flat_map(|rank| forms(members, rank));
        let least = all.map(|form| form.bytes(members)).min();
        assert_eq!(smallest_factor_bytes(members), least);
    }
    // Of rank 8: 256 inputs in 4.5 bits, and 512 rows that are no whole blocks in f16.
    let bytes = 8 * 256 * 9 / 16 + 2 * 8 * 512;
    assert_eq!(smallest_factor_bytes(&group[..1]), Some(bytes));
    let tiny = [member(ProjectionKind::Q, 4, 4)];
    assert_eq!(smallest_factor_bytes(&tiny), None);
}
