# Dials that began before the ejection change nothing, however they end:
# neither the ejection's length nor health nor the count.
0s begin slow-failure                | healthy health=1.000 failures=0 ejections=0
0s begin slow-success                | healthy health=1.000 failures=0 ejections=0
0s begin slow-for-the-probe          | healthy health=1.000 failures=0 ejections=0
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s begin b                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
5s end slow-failure failure          | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
5s end slow-success success          | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
60s begin probe                      | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
61s end slow-for-the-probe success   | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
62s end probe neutral                | probing health=0.490 failures=2 ejections=1 until=1m0s
