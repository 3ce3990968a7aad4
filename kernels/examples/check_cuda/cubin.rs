//! Per-kernel resource usage, read from cubin files.

use std::error::Error;

use htc_formats::CodecError;
use htc_formats::wire::Cursor;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolIndex};

/// Resource usage of a kernel.
#[derive(Debug, PartialEq)]
pub struct KernelResources {
    /// Kernel name.
    pub kernel: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread (indexed arrays and register spills).
    pub local_bytes: u32,
    /// Bytes of static shared memory.
    pub static_shared_bytes: u32,
    /// Maximum threads per block.
    pub max_threads: u32,
    /// Bytes of the kernel arguments.
    pub argument_bytes: u32,
}

/// Attributes of kernels, with the names of `cuobjdump -elf`.
mod attribute {
    pub const MAX_THREADS: u8 = 0x05;
    pub const FRAME_SIZE: u8 = 0x11;
    pub const CBANK_PARAM_SIZE: u8 = 0x19;
    pub const REGCOUNT: u8 = 0x2f;
}

/// Shared memory reserved by the system; from 9.0 on included in the size of a `NOBITS` section.
const RESERVED_SHARED_BYTES: u64 = 1 << 10;

struct Attribute<'a> {
    kind: u8,
    value: u16,
    bytes: &'a [u8],
}

/// Returns the resource usage of each kernel in a cubin, sorted by name, or an explanation for a
/// damaged file or another format.
pub fn read_kernel_resources(bytes: &[u8]) -> Result<Vec<KernelResources>, Box<dyn Error>> {
    let file = ElfFile64::<LittleEndian>::parse(bytes)?;
    let global = file.section_by_name(".nv.info").ok_or("no .nv.info")?;
    let global = attributes(global.data()?)?;
    // The attribute holds a symbol index and a value.
    let of_symbol = |kind: u8, kernel: &str| -> Result<Option<u32>, Box<dyn Error>> {
        for attribute in global.iter().filter(|a| a.kind == kind) {
            let mut cursor = Cursor::new(attribute.bytes);
            let (symbol, value) = (cursor.u32()?, cursor.u32()?);
            if file.symbol_by_index(SymbolIndex(symbol as usize))?.name()? == kernel {
                return Ok(Some(value));
            }
        }
        Ok(None)
    };
    let system = match file.section_by_name(".nv.shared.reserved.0") {
        Some(_) => RESERVED_SHARED_BYTES,
        None => 0,
    };
    let mut found = Vec::new();
    for info in file.sections() {
        let Some(kernel) = info.name()?.strip_prefix(".nv.info.") else {
            continue;
        };
        let own = attributes(info.data()?)?;
        let threads = own.iter().find(|a| a.kind == attribute::MAX_THREADS);
        let threads = threads.map_or(Ok(1024), |a| Cursor::new(a.bytes).u32())?;
        let arguments = own.iter().find(|a| a.kind == attribute::CBANK_PARAM_SIZE);
        let registers = of_symbol(attribute::REGCOUNT, kernel)?;
        let shared = file.section_by_name(&format!(".nv.shared.{kernel}"));
        let shared = shared.map_or(0, |shared| shared.size());
        found.push(KernelResources {
            kernel: kernel.to_owned(),
            registers: registers.ok_or_else(|| format!("{kernel}: no number of registers"))?,
            local_bytes: of_symbol(attribute::FRAME_SIZE, kernel)?.unwrap_or(0),
            static_shared_bytes: u32::try_from(shared.saturating_sub(system))?,
            max_threads: threads,
            argument_bytes: arguments.map_or(0, |a| a.value.into()),
        });
    }
    found.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    Ok(found)
}

/// Reads the attributes of a section: format, kind, and 16 bits, which are the length of the
/// payload if the format is `SIZED`.
fn attributes(bytes: &[u8]) -> Result<Vec<Attribute<'_>>, CodecError> {
    const SIZED: u8 = 4;
    let mut cursor = Cursor::new(bytes);
    let mut found = Vec::new();
    while cursor.remaining() > 0 {
        let [format, which] = cursor.array()?;
        let value = cursor.u16()?;
        let bytes = match format {
            SIZED => cursor.bytes(value.into())?,
            _ => &[],
        };
        found.push(Attribute {
            kind: which,
            value,
            bytes,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
