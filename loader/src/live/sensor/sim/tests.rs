use super::*;

fn plant(text: &str) -> ThermalPlant {
    text.parse::<SimOptions>().unwrap().plant()
}

#[test]
fn plant_converges_to_its_equilibrium() {
    let mut body = plant("start=25");
    assert_eq!(body.equilibrium(Some(1.0)), 98.5);
    assert_eq!(body.equilibrium(None), 35.5);
    let joules = body.step(Some(1.0), Duration::from_secs(42));
    let expected = 98.5 - 73.5 / std::f64::consts::E;
    assert!((body.temperature() - expected).abs() < 1e-9);
    assert_eq!(joules, 105.0 * 42.0);
    let mut other = plant("start=25");
    for _ in 0..420 {
        other.step(Some(1.0), Duration::from_millis(100));
    }
    assert!((other.temperature() - expected).abs() < 1e-9);
    body.step(None, Duration::from_secs(1_000_000));
    assert!((body.temperature() - 35.5).abs() < 1e-9);
    assert_eq!(plant("").temperature(), 35.5);
}

#[test]
fn plant_solves_its_differential_equation() {
    let (mut body, mut euler, dt) = (plant("start=30,time=10,share=0.6"), 30.0, 1e-4);
    let capacity = 10.0 / 0.7;
    for step in 0..200_000 {
        let power = 15.0 + 90.0 * (0.4 + 0.6 * 0.5);
        euler += dt * (power - (euler - 25.0) / 0.7) / capacity;
        if step % 1000 == 999 {
            body.step(Some(0.5), Duration::from_millis(100));
            assert!((body.temperature() - euler).abs() < 1e-3);
        }
    }
}

#[test]
fn sensor_follows_the_fraction_and_counts_energy() {
    let (follow, clock) = (SharedFraction::new(), Clock::manual());
    let mut sensor =
        SimulatedSensor::new(plant(""), Arc::clone(&follow), clock.clone().scaled(2.0));
    let first = sensor.read().unwrap();
    assert_eq!((first.energy, first.power), (Some(0.0), Some(105.0)));
    follow.set_fraction(0.5);
    clock.advance(Duration::from_secs(3));
    let half = sensor.read().unwrap();
    assert_eq!((half.energy, half.power), (Some(360.0), Some(60.0)));
    assert_eq!(half.time, Duration::from_secs(6));
    follow.set_busy(false);
    clock.advance(Duration::from_secs(1));
    assert_eq!(sensor.read().unwrap().energy, Some(390.0));
    assert_eq!(sensor.read().unwrap().energy, Some(390.0));
}
