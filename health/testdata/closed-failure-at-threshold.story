# The second failure in a row ejects for one base backoff, health at 0.49.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
1s begin b                           | healthy health=0.700 failures=1 ejections=0
1s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m1s unusable <ejected>
60s show                             | ejected health=0.490 failures=2 ejections=1 until=1m1s unusable
