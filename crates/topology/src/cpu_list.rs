//! Lists of CPUs as the kernel writes them: `0-3,8,10-11`.

/// CPUs beyond this number are refused: eight times what Linux can be built for, and a bound for what a damaged
/// file can make us allocate.
pub const MAX_CPU: usize = 65_535;

/// The numbers in `text`, ascending, each once; `None` if it is no such list. An empty text is an empty list.
pub fn parse(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last > MAX_CPU {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > 2 * MAX_CPU {
            return None;
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

pub fn format(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let write = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(write).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read_and_written() {
        for (text, numbers) in
            [("", vec![]), ("0", vec![0]), ("0-3", vec![0, 1, 2, 3]), ("0-1,4,6-7", vec![0, 1, 4, 6, 7]), ("2047", vec![2047])]
        {
            assert_eq!(parse(text), Some(numbers.clone()), "{text}");
            assert_eq!(format(&numbers), text);
        }
        assert_eq!(parse("3,1-2,2\n"), Some(vec![1, 2, 3]));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["a", "1-", "-1", "3-1", "0-99999999999999999999", "0-4294967295", "1;2", "0x3"] {
            assert_eq!(parse(text), None, "{text}");
        }
        let bomb = vec!["0-65535"; 64].join(",");
        assert_eq!(parse(&bomb), None, "a list that repeats itself");
    }
}
