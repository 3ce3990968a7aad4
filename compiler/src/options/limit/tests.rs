use super::*;

#[test]
fn errors_name_limits_by_builder_method() {
    let mut limit = QualityLimit {
        perplexity_increase: Some(0.01),
        kl: None,
    };
    assert_eq!(limit.as_builder_call(), "`max_perplexity_increase` 1 %");
    limit.kl = Some(0.5);
    assert_eq!(
        limit.as_builder_call(),
        "`max_perplexity_increase` 1 % and `max_kl` 0.5"
    );
    assert_eq!(
        limit.to_string(),
        "--max-perplexity-increase 1 --max-kl 0.5"
    );
}
