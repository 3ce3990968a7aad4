//! Selection of kernel code for a device.

pub use htc_formats::htz::{CodeFormat, CodeImage, GpuArchitecture, KernelCode};

use super::source::{UNITS, sources_digest};

/// Images of one architecture and form, one per unit, in the order of [`UNITS`].
pub type Images<'a> = Vec<&'a CodeImage>;

/// Returns the parts of `code` that run on a device of this architecture, best first: cubins of the
/// architecture or the nearest lower minor version, then PTX of the nearest lower architecture.
pub fn compatible_images(
    code: &KernelCode,
    device: GpuArchitecture,
) -> Result<Vec<Images<'_>>, String> {
    let own = sources_digest();
    if code.sources != own {
        return Err(format!(
            "the sealed ones were compiled from other sources ({:.12}, this program has {:.12})",
            code.sources.to_string(),
            own.to_string()
        ));
    }
    let of = |form: CodeFormat, fits: &dyn Fn(GpuArchitecture) -> bool| {
        let mut architectures = code.architectures();
        architectures.retain(|&a| a <= device && fits(a));
        architectures
            .into_iter()
            .rev()
            .find_map(|architecture| images_of(code, architecture, form))
    };
    let cubin = of(CodeFormat::Cubin, &|a| a.major == device.major);
    let ptx = of(CodeFormat::Ptx, &|_| true);
    let found: Vec<_> = cubin.into_iter().chain(ptx).collect();
    if found.is_empty() {
        let architectures = code
            .architectures()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        return Err(format!(
            "the sealed ones are for {}",
            architectures.join(", ")
        ));
    }
    Ok(found)
}

fn images_of(
    code: &KernelCode,
    architecture: GpuArchitecture,
    form: CodeFormat,
) -> Option<Images<'_>> {
    let image = |unit: &str| {
        code.images.iter().find(|image| {
            image.architecture == architecture && image.form == form && image.unit == unit
        })
    };
    UNITS.iter().map(|unit| image(unit.name)).collect()
}

#[cfg(test)]
mod tests;
