//! What the compiler made of the copy-in primitive: on every path through `Reader::receive`, the stamp is loaded
//! first, then every byte of the slot exactly once, then nothing of the slot, and the slot is never written.
//!
//! A compiler may load memory twice whenever it believes that nobody else writes it; a peer that does would then be
//! checked in one load and obeyed in the other. Volatile and atomic loads and inline assembly forbid that; this test
//! sees that they did.
#![cfg(all(target_arch = "x86_64", not(loom), not(miri)))]

mod common;
#[path = "common/machine_code.rs"]
mod machine_code;

use std::collections::{HashMap, HashSet};

const PROBE: &str = "fipsee_probe_receive";
const STAMP_OFFSET: i64 = 60;
/// Instructions of one path; more means that the walk found a loop, which `receive` does not have.
const MAX_PATH: usize = 400;

#[derive(Clone, Debug)]
struct Instruction {
    address: u64,
    mnemonic: String,
    operands: Vec<String>,
}

/// A load from a slot: offset and length in bytes.
type Load = (i64, i64);

fn parse(listing: &str) -> Vec<Instruction> {
    let line = |line: &str| {
        let (address, text) = line.trim().split_once(":\t")?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let text = text.split('#').next().unwrap_or_default().trim();
        let (mnemonic, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands = operands.split(',').map(|operand| operand.trim().to_owned()).filter(|text| !text.is_empty()).collect();
        Some(Instruction { address, mnemonic: mnemonic.to_owned(), operands })
    };
    listing.lines().filter_map(line).collect()
}

/// Bytes of an Intel-syntax memory operand, and what stands between its brackets; `None` for other operands.
fn memory_operand(operand: &str) -> Option<(i64, &str)> {
    let inside = operand.split_once('[')?.1.split_once(']')?.0;
    let sizes = [("ZMMWORD", 64), ("YMMWORD", 32), ("XMMWORD", 16), ("QWORD", 8), ("DWORD", 4), ("WORD", 2), ("BYTE", 1)];
    let bytes = sizes.iter().find(|(name, _)| operand.starts_with(name)).map_or(0, |(_, bytes)| *bytes);
    Some((bytes, inside))
}

/// The 64-bit name of a general register, whatever part of it is named.
fn whole_register(name: &str) -> String {
    let numbered = name.strip_prefix('r').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    if numbered {
        return name.trim_end_matches(['d', 'w', 'b']).to_owned();
    }
    let stem = name.trim_start_matches(['r', 'e']).trim_end_matches('l');
    match stem {
        "a" | "b" | "c" | "d" => format!("r{stem}x"),
        _ => format!("r{stem}"),
    }
}

/// One path through the function, as far as it has been followed.
#[derive(Clone)]
struct Path {
    next: usize,
    steps: usize,
    /// Registers that hold our own memory: the two arguments and the stack.
    ours: HashSet<String>,
    loads: Vec<Load>,
}

impl Path {
    fn is_ours(&self, address: &str) -> bool {
        let mut registers = address.split(['+', '-', '*']).filter(|part| part.starts_with('r'));
        registers.any(|register| register == "rip" || register == "rsp" || self.ours.contains(register))
    }

    /// Follow one instruction's memory accesses and what it does to the registers we know.
    fn execute(&mut self, instruction: &Instruction) -> Result<(), String> {
        let Instruction { mnemonic, operands, address } = instruction;
        let touches_memory = !mnemonic.starts_with("lea") && !mnemonic.starts_with("nop") && !mnemonic.starts_with("prefetch");
        for (index, operand) in operands.iter().enumerate() {
            let Some((bytes, place)) = memory_operand(operand).filter(|_| touches_memory) else { continue };
            if self.is_ours(place) {
                continue;
            }
            let reads_only = index > 0 || mnemonic.starts_with("cmp") || mnemonic.starts_with("test");
            if !reads_only {
                return Err(format!("{address:x}: {mnemonic} writes into the slot at [{place}]"));
            }
            let displacement = place.rsplit_once("+0x").and_then(|(_, hex)| i64::from_str_radix(hex, 16).ok()).unwrap_or(0);
            self.loads.push((displacement, bytes));
        }
        let writes_register = !mnemonic.starts_with("cmp") && !mnemonic.starts_with("test") && !mnemonic.starts_with("push");
        if let Some(target) = operands.first().filter(|target| writes_register && memory_operand(target).is_none()) {
            let copies_ours = mnemonic == "mov" && operands.get(1).is_some_and(|source| self.ours.contains(source));
            if copies_ours {
                self.ours.insert(target.clone());
            } else {
                self.ours.remove(&whole_register(target));
            }
        }
        Ok(())
    }
}

/// The slot loads of every path from the first instruction to a return, a call that does not come back, or a trap.
fn slot_loads_of_paths(code: &[Instruction]) -> Result<Vec<Vec<Load>>, String> {
    let place_of: HashMap<u64, usize> =
        code.iter().enumerate().map(|(place, instruction)| (instruction.address, place)).collect();
    let ours = HashSet::from(["rdi".to_owned(), "rsi".to_owned()]);
    let mut open = vec![Path { next: 0, steps: 0, ours, loads: Vec::new() }];
    let mut finished = Vec::new();
    while let Some(mut path) = open.pop() {
        let instruction = code.get(path.next).ok_or("the code runs past its end")?;
        path.steps += 1;
        if path.steps > MAX_PATH {
            return Err(format!("a loop at {:x}", instruction.address));
        }
        let mnemonic = instruction.mnemonic.as_str();
        if mnemonic.starts_with("ret") || mnemonic == "call" || mnemonic.starts_with("ud") {
            finished.push(path.loads);
            continue;
        }
        path.execute(instruction)?;
        path.next += 1;
        if mnemonic.starts_with('j') {
            let target = instruction.operands.first().and_then(|operand| operand.split_whitespace().next());
            let target = target.and_then(|hex| u64::from_str_radix(hex, 16).ok()).and_then(|address| place_of.get(&address));
            let target = *target.ok_or_else(|| format!("{:x}: a jump out of the function", instruction.address))?;
            open.push(Path { next: target, ..path.clone() });
            if mnemonic == "jmp" {
                continue;
            }
        }
        open.push(path);
    }
    Ok(finished)
}

/// Which variants' paths were found, or what is wrong with one.
fn check(code: &[Instruction]) -> Result<(bool, bool), String> {
    let portable: Vec<Load> = (0..8).map(|word| (8 * word, 8)).collect();
    let wide: Vec<Load> = (0..4).map(|quarter| (16 * quarter, 16)).collect();
    let (mut saw_portable, mut saw_wide) = (false, false);
    for loads in slot_loads_of_paths(code)? {
        let Some((stamp, rest)) = loads.split_first() else {
            return Err("a path that never looks at the stamp".to_owned());
        };
        let mut rest = rest.to_vec();
        rest.sort_unstable();
        match rest {
            _ if *stamp != (STAMP_OFFSET, 4) => return Err(format!("the first load is {stamp:?}, not the stamp")),
            rest if rest.is_empty() => {}
            rest if rest == portable => saw_portable = true,
            rest if rest == wide => saw_wide = true,
            rest => return Err(format!("after the stamp, a path loads (offset, bytes) {rest:?}")),
        }
    }
    Ok((saw_portable, saw_wide))
}

/// checks: R-2.2-2
#[test]
fn every_byte_of_a_slot_is_loaded_exactly_once_after_its_stamp() {
    if machine_code::is_objdump_missing() {
        return common::skip("machine code of the copy-in primitive", "objdump is missing; install binutils");
    }
    let program = machine_code::build_example("copy_in_probe");
    let body = machine_code::disassemble(&program, PROBE, &["-M", "intel", "--no-show-raw-insn"]);

    let (portable, wide) = check(&parse(&body)).unwrap_or_else(|fault| panic!("{fault} in:\n{body}"));
    assert!(portable, "no path copies eight words:\n{body}");
    assert!(wide, "no path copies 64 bytes at once:\n{body}");
}

/// The stamp check and the eight loads of an honest portable path, for the tests of the checker itself.
fn honest() -> Vec<String> {
    let mut lines = vec!["mov    eax,DWORD PTR [rcx+rax*1+0x3c]".to_owned(), "mov    rdx,rsi".to_owned()];
    for word in 0..8 {
        lines.push(format!("mov    r9,QWORD PTR [r8+{:#x}]", 8 * word));
        lines.push(format!("mov    QWORD PTR [rdx+{:#x}],r9", 8 * word));
    }
    lines.push("ret".to_owned());
    lines
}

fn check_lines(lines: &[String]) -> Result<(bool, bool), String> {
    let numbered = lines.iter().enumerate().map(|(index, line)| format!("  {index:x}:\t{line}\n"));
    check(&parse(&numbered.collect::<String>()))
}

#[test]
fn checker_accepts_an_honest_copy() {
    assert_eq!(check_lines(&honest()), Ok((true, false)));
}

#[test]
fn checker_rejects_every_way_to_look_twice() {
    let load_after_copy = ["mov    r9,QWORD PTR [r8+0x8]", "cmp    DWORD PTR [r8+0x10],0x1", "vmovdqa64 zmm16,ZMMWORD PTR [r8]"];
    for bad in load_after_copy.into_iter().chain(["mov    DWORD PTR [r8+0x3c],0x0", "movzx  eax,BYTE PTR [rcx+0x1]"]) {
        let mut lines = honest();
        lines.insert(lines.len() - 1, bad.to_owned());
        assert!(check_lines(&lines).is_err(), "accepted: {bad}");
    }
    let mut split = honest();
    split[2] = "mov    r9d,DWORD PTR [r8]".to_owned();
    assert!(check_lines(&split).is_err(), "accepted a copy with a hole");
    let mut early = honest();
    early.swap(0, 2);
    assert!(check_lines(&early).is_err(), "accepted a copy before the stamp");
    let mut lost = honest();
    lost[1] = "mov    rdx,QWORD PTR [rdi]".to_owned();
    assert!(check_lines(&lost).is_err(), "accepted a store through an unknown pointer");
}
