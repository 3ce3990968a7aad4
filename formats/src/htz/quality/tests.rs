use super::*;

#[test]
fn longest_record_bounds_all_records() {
    let length = |record: &QualityRecord| serde_json::to_vec(record).map(|text| text.len());
    let most = length(&QualityRecord::draft().with_longest_numbers()).unwrap();
    for number in [LONGEST_NUMBER, f64::MAX, 5e-324, 0.1 + 0.2] {
        let estimate = Measurement {
            value: number,
            stderr: Some(number),
            interval: Some((-number, -number)),
        };
        let record = QualityRecord {
            context: u64::MAX,
            windows: u64::MAX,
            tokens: u64::MAX,
            choosing_windows: u64::MAX,
            kl: estimate,
            perplexity_ratio: estimate,
            ..QualityRecord::draft()
        };
        assert!(length(&record).unwrap() <= most, "{number}");
    }
}
