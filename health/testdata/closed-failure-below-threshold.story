# One failure lowers health to 0.70 and ejects nobody.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
