module fipsee

go 1.19
