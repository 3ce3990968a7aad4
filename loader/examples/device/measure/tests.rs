use super::*;

#[test]
fn bandwidth_is_bytes_per_token_times_speed() {
    let speed = Median::from_values(vec![10.0]);
    let found = speed_of(speed, 300, Some(6000.0));
    assert_eq!(found["bytes_per_second"], 3000.0);
    assert_eq!(found["of_copy"], 0.5);
    assert_eq!(speed_of(speed, 300, None)["of_copy"], Value::Null);
    assert_eq!(speed_of(None, 300, None), Value::Null);
}

#[test]
fn counters_are_differences_over_the_runs() {
    let found = per_token(Some([100, 3]), Some([180, 7]), 8);
    assert_eq!(found, json!({ "launches": 10.0, "copies": 0.5 }));
    assert_eq!(per_token(None, None, 8), Value::Null);
    let found = counter_differences(
        &json!({ "made": 1, "plain": 0 }),
        &json!({ "made": 1, "plain": 4 }),
    );
    assert_eq!(found, json!({ "made": 0, "plain": 4 }));
    assert_eq!(counter_differences(&Value::Null, &Value::Null), Value::Null);
}
