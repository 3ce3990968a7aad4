//! Lists the usable GPUs; fails with a reason if there are none.

fn main() -> std::process::ExitCode {
    match list_devices() {
        Ok(found) => {
            println!("{found}");
            std::process::ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "cuda")]
fn list_devices() -> Result<String, String> {
    use htc_kernels::cuda::Cuda;
    use htc_kernels::cuda::driver::MIN_ARCHITECTURE;

    let all = Cuda::devices().map_err(|error| error.to_string())?;
    let line = |found: &htc_kernels::cuda::driver::DeviceProperties| {
        let (index, name) = (found.index, &found.name);
        format!(
            "{index}: {name}, {}, {}",
            found.architecture,
            found.uuid_string()
        )
    };
    let lines: Vec<String> = all.iter().map(line).collect();
    if all
        .iter()
        .any(|found| found.architecture >= MIN_ARCHITECTURE)
    {
        Ok(lines.join("\n"))
    } else {
        Err(format!(
            "kernels need {MIN_ARCHITECTURE}, there are {}",
            lines.join("; ")
        ))
    }
}

#[cfg(not(feature = "cuda"))]
fn list_devices() -> Result<String, String> {
    Err("this build has no feature cuda".to_owned())
}
