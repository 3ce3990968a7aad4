use super::*;

#[test]
fn scales_round_trip_through_config() {
    for divisor_of in [144.0f64, 168.0, 256.0, 1000.5] {
        let scale = divisor_of.powf(-0.5) as f32;
        let stated = divisor(scale).as_f64().unwrap();
        assert_eq!(stated.powf(-0.5) as f32, scale);
    }
    assert_eq!(divisor(168f64.powf(-0.5) as f32), json!(168));
    assert_eq!(short(1e-6).to_string(), "1e-6");
}
