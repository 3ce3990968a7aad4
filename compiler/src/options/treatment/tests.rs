use super::*;

#[test]
fn options_round_trip() {
    for kind in GaugeKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    for bias in BiasArg::ALL {
        assert_eq!(bias.name().parse(), Ok(bias));
    }
    for sink in ["off", "append", "channels:1", "channels:32"] {
        let parsed: SinkProtection = sink.parse().unwrap();
        assert_eq!(parsed.to_string(), sink);
    }
    for sink in [
        "",
        "on",
        "channels",
        "channels:",
        "channels:0",
        "channels:-1",
    ] {
        assert!(sink.parse::<SinkProtection>().is_err(), "{sink}");
    }
}

#[test]
fn defaults_depend_on_the_calibration() {
    assert_eq!(
        TreatmentOptions::default().resolve(false),
        Ok(Treatment::default())
    );
    let calibrated = TreatmentOptions::default().resolve(true).unwrap();
    assert_eq!(
        calibrated.to_string(),
        "gauge whiten, sink append, bias off"
    );
    let asked = TreatmentOptions {
        gauge: Some(GaugeKind::Axiom),
        sink: Some(SinkProtection::Channels(8)),
        bias: Some(BiasArg::Auto),
        ..TreatmentOptions::default()
    };
    let found = asked.resolve(false).unwrap();
    assert_eq!(found.to_string(), "gauge axiom, sink channels:8, bias off");
    assert_eq!(
        asked.to_string(),
        "--gauge axiom --sink channels:8 --bias auto"
    );
}

#[test]
fn options_that_need_activations_require_calibration() {
    let nothing = TreatmentOptions::default();
    let gauge = |gauge| TreatmentOptions {
        gauge: Some(gauge),
        ..nothing
    };
    for (asked, option) in [
        (gauge(GaugeKind::Whiten), "`gauge` whiten"),
        (gauge(GaugeKind::Activation), "`gauge` activation"),
        (
            TreatmentOptions {
                sink: Some(SinkProtection::Append),
                ..nothing
            },
            "`sink` append",
        ),
        (
            TreatmentOptions {
                bias: Some(BiasArg::On),
                ..nothing
            },
            "`bias` on",
        ),
    ] {
        let error = asked.resolve(false).unwrap_err().to_string();
        assert!(error.starts_with(option), "{error}");
        assert!(error.contains("`calibration`"), "{error}");
        assert!(asked.resolve(true).is_ok());
    }
    assert!(gauge(GaugeKind::Axiom).resolve(false).is_ok());
}

#[test]
fn shrinkage_requires_whiten() {
    let part = ShrinkageArg::Fixed(Shrinkage::new(0.1).unwrap());
    let shrunk = |gauge| TreatmentOptions {
        gauge,
        shrinkage: Some(part),
        ..TreatmentOptions::default()
    };
    let found = shrunk(None).resolve(true).unwrap();
    assert!(found.to_string().ends_with(", shrinkage 0.1"), "{found}");
    assert_eq!(found.applied_shrinkage(), Shrinkage::new(0.1));
    for gauge in [GaugeKind::None, GaugeKind::Activation] {
        let error = shrunk(Some(gauge)).resolve(true).unwrap_err().to_string();
        assert!(error.contains("`gauge` whiten"), "{error}");
        assert_eq!(Treatment::with_gauge(gauge).applied_shrinkage(), None);
    }
    let error = shrunk(None).resolve(false).unwrap_err().to_string();
    assert!(error.contains("`calibration`"), "{error}");
}

#[test]
fn flags_override_the_plan() {
    let flags = TreatmentOptions {
        gauge: Some(GaugeKind::None),
        ..TreatmentOptions::default()
    };
    let plan = TreatmentOptions {
        gauge: Some(GaugeKind::Axiom),
        bias: Some(BiasArg::Off),
        ..TreatmentOptions::default()
    };
    let both = flags.or_else_from(plan);
    assert_eq!(both.gauge, Some(GaugeKind::None));
    assert_eq!(both.bias, Some(BiasArg::Off));
    assert_eq!(both.sink, None);
}

#[test]
fn options_of_a_treatment_resolve_to_it() {
    for bias in [false, true] {
        for gauge in [GaugeKind::None, GaugeKind::Whiten] {
            let shrinkage = match gauge {
                GaugeKind::Whiten => Shrinkage::new(0.25).unwrap(),
                _ => Shrinkage::default(),
            };
            let treatment = Treatment {
                gauge,
                sink: SinkProtection::Channels(3),
                bias,
                shrinkage,
            };
            let options = TreatmentOptions::from(treatment);
            assert_eq!(options.resolve(true), Ok(treatment));
        }
    }
}
