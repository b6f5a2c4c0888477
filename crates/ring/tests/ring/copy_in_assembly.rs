//! What the compiler made of the copy-in primitive: on every path through `Reader::receive`, the stamp is loaded
//! first, then every byte of the slot exactly once, then nothing of the slot. All that is ever written there is the stamp, once,
//! after all that (the touch).
//!
//! A compiler may load memory twice whenever it may assume that no other thread writes it; then one load would be
//! checked and the other, which a peer may have changed, used. Volatile and atomic loads and inline assembly forbid that; this
//! test sees that they did.

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

/// Bytes of an Intel-syntax memory operand, and the text between its brackets; `None` for other operands.
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
    /// Was the stamp stored again? Nothing of the slot may be accessed after that.
    touched: bool,
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
            let displacement = place.rsplit_once("+0x").and_then(|(_, hex)| i64::from_str_radix(hex, 16).ok()).unwrap_or(0);
            if self.touched {
                return Err(format!("{address:x}: {mnemonic} accesses the slot at [{place}] after its touch"));
            }
            if reads_only {
                self.loads.push((displacement, bytes));
                continue;
            }
            let stores_register = mnemonic == "mov" && operands.get(1).is_some_and(|source| !source.starts_with("0x"));
            let copied_bytes: i64 = self.loads.iter().skip(1).map(|(_, bytes)| bytes).sum();
            if !stores_register || (displacement, bytes) != (STAMP_OFFSET, 4) || copied_bytes != 64 {
                return Err(format!("{address:x}: {mnemonic} writes into the slot at [{place}]"));
            }
            self.touched = true;
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

/// The slot loads of every path, and whether it touches the slot, from the first instruction to a return, a call that does not
/// come back, or a trap.
fn slot_accesses_of_paths(code: &[Instruction]) -> Result<Vec<(Vec<Load>, bool)>, String> {
    let place_of: HashMap<u64, usize> =
        code.iter().enumerate().map(|(place, instruction)| (instruction.address, place)).collect();
    let ours = HashSet::from(["rdi".to_owned(), "rsi".to_owned()]);
    let mut open = vec![Path { next: 0, steps: 0, ours, loads: Vec::new(), touched: false }];
    let mut finished = Vec::new();
    while let Some(mut path) = open.pop() {
        let instruction = code.get(path.next).ok_or("the code runs past its end")?;
        path.steps += 1;
        if path.steps > MAX_PATH {
            return Err(format!("a loop at {:x}", instruction.address));
        }
        let mnemonic = instruction.mnemonic.as_str();
        if mnemonic.starts_with("ret") || mnemonic == "call" || mnemonic.starts_with("ud") {
            finished.push((path.loads, path.touched));
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

/// Which variants' paths were found, without and with a touch, or what is wrong with one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    portable: [bool; 2],
    wide: [bool; 2],
}

fn check(code: &[Instruction]) -> Result<Found, String> {
    let portable: Vec<Load> = (0..8).map(|word| (8 * word, 8)).collect();
    let wide: Vec<Load> = (0..4).map(|quarter| (16 * quarter, 16)).collect();
    let mut found = Found::default();
    for (loads, touched) in slot_accesses_of_paths(code)? {
        let Some((stamp, rest)) = loads.split_first() else {
            return Err("a path that never looks at the stamp".to_owned());
        };
        let mut rest = rest.to_vec();
        rest.sort_unstable();
        match rest {
            _ if *stamp != (STAMP_OFFSET, 4) => return Err(format!("the first load is {stamp:?}, not the stamp")),
            rest if rest.is_empty() => {}
            rest if rest == portable => found.portable[usize::from(touched)] = true,
            rest if rest == wide => found.wide[usize::from(touched)] = true,
            rest => return Err(format!("after the stamp, a path loads (offset, bytes) {rest:?}")),
        }
    }
    Ok(found)
}

/// checks: R-2.2-2
#[test]
fn every_byte_of_a_slot_is_loaded_exactly_once_after_its_stamp() {
    if crate::machine_code::is_objdump_missing() {
        return crate::common::skip("machine code of the copy-in primitive", "objdump is missing; install binutils");
    }
    let program = crate::machine_code::build_example("copy_in_probe");
    let body = crate::machine_code::disassemble(&program, PROBE, &["-M", "intel", "--no-show-raw-insn"]);

    let found = check(&parse(&body)).unwrap_or_else(|fault| panic!("{fault} in:\n{body}"));
    assert_eq!(found.portable, [true; 2], "paths that copy eight words, without and with a touch:\n{body}");
    assert_eq!(found.wide, [true; 2], "paths that copy four quarters, without and with a touch:\n{body}");
}

/// The stamp check and the eight loads of a correct portable path, for the tests of the checker itself.
fn correct() -> Vec<String> {
    let mut lines = vec!["mov    eax,DWORD PTR [rcx+rax*1+0x3c]".to_owned(), "mov    rdx,rsi".to_owned()];
    for word in 0..8 {
        lines.push(format!("mov    r9,QWORD PTR [r8+{:#x}]", 8 * word));
        lines.push(format!("mov    QWORD PTR [rdx+{:#x}],r9", 8 * word));
    }
    lines.push("ret".to_owned());
    lines
}

fn check_lines(lines: &[String]) -> Result<Found, String> {
    let numbered = lines.iter().enumerate().map(|(index, line)| format!("  {index:x}:\t{line}\n"));
    check(&parse(&numbered.collect::<String>()))
}

/// The stamp, stored again.
const TOUCH: &str = "mov    DWORD PTR [rcx+rax*1+0x3c],r9d";

/// The verdict on a correct copy with `lines` in place of what begins at `at`, as many of it as `replaced`.
fn check_with(at: usize, replaced: usize, lines: &[&str]) -> Result<Found, String> {
    let mut all = correct();
    all.splice(at..at + replaced, lines.iter().map(|line| (*line).to_owned()));
    check_lines(&all)
}

#[test]
fn checker_accepts_a_correct_copy() {
    assert_eq!(check_lines(&correct()), Ok(Found { portable: [true, false], ..Found::default() }));
    assert_eq!(check_with(correct().len() - 1, 0, &[TOUCH]), Ok(Found { portable: [false, true], ..Found::default() }));
}

#[test]
fn checker_rejects_a_touch_at_the_wrong_place_or_time() {
    let end = correct().len() - 1;
    for (what, at, lines) in [
        ("before the copy", 2, &[TOUCH][..]),
        ("amid the copy", end - 2, &[TOUCH]),
        ("elsewhere", end, &["mov    DWORD PTR [r8+0x38],r9d"]),
        ("wider", end, &["mov    QWORD PTR [r8+0x38],r9"]),
        ("twice", end, &[TOUCH, TOUCH]),
        ("and a look after it", end, &[TOUCH, "mov    r9,QWORD PTR [r8+0x8]"]),
    ] {
        assert!(check_with(at, 0, lines).is_err(), "{what}");
    }
}

#[test]
fn checker_rejects_every_way_to_look_twice() {
    let (end, stamp) = (correct().len() - 1, correct()[0].clone());
    for (what, at, replaced, lines) in [
        ("a load", end, 0, &["mov    r9,QWORD PTR [r8+0x8]"][..]),
        ("a comparison", end, 0, &["cmp    DWORD PTR [r8+0x10],0x1"]),
        ("a wide load", end, 0, &["vmovdqa64 zmm16,ZMMWORD PTR [r8]"]),
        ("a store", end, 0, &["mov    DWORD PTR [r8+0x3c],0x0"]),
        ("a load of a byte", end, 0, &["movzx  eax,BYTE PTR [rcx+0x1]"]),
        ("a copy with a hole", 2, 1, &["mov    r9d,DWORD PTR [r8]"]),
        ("a copy before the stamp", 0, 3, &["mov    r9,QWORD PTR [r8+0x0]", "mov    rdx,rsi", &stamp]),
        ("a store through an unknown pointer", 1, 1, &["mov    rdx,QWORD PTR [rdi]"]),
    ] {
        assert!(check_with(at, replaced, lines).is_err(), "accepted: {what}");
    }
}
